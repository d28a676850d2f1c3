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

/* op_test.c */
extern void test_ops(void);

/* connect_test.c */
extern void test_connect(void);

/* batch_test.c */
extern void test_batches(void);

#endif							/* DLOCK_UNIT_TEST_H */
