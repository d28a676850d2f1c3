/*-------------------------------------------------------------------------
 *
 * unit_test.h
 *	  What unit_test.c and pilot_test.c share.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_UNIT_TEST_H
#define DLOCK_UNIT_TEST_H

#include <stdbool.h>

extern void ok(bool good, const char *fmt,...);

/* pilot_test.c */
extern void test_pilot(void);

#endif							/* DLOCK_UNIT_TEST_H */
