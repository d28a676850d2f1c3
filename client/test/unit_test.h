/*-------------------------------------------------------------------------
 *
 * unit_test.h
 *	  What the files of the unit tests share.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_UNIT_TEST_H
#define DLOCK_UNIT_TEST_H

#include <stdbool.h>

extern void ok(bool good, const char *fmt,...);

/* pilot_test.c */
extern void test_pilot(void);

/* connect_test.c */
extern void test_connect(void);

/* flights_test.c */
extern void test_flights(void);

#endif							/* DLOCK_UNIT_TEST_H */
