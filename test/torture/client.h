/*-------------------------------------------------------------------------
 *
 * client.h
 *	  What the files of the torture client share.
 *
 *-------------------------------------------------------------------------
 */
#ifndef TORTURE_CLIENT_H
#define TORTURE_CLIENT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define KEY_SIZE 16
#define OWNER_SIZE 32
#define SHARED_KEYS 4

extern int	client;				/* our number */
extern atomic_bool stopping;	/* set by a signal */

/* The number of the first of n operations. */
extern long next_ops(int n);

/* Each thread has a sequence of its own. */
extern int	below(int n);
extern bool chance(int percent);
extern void rest(int ms);

/*
 * Writes to the register.  Each thread remembers some tokens that are perhaps no
 * longer good, to try them later.
 */
extern void remember(const char *key, int64_t version);
extern void do_write(const char *key, int64_t version, int left_ms);
extern void do_old_write(void);

#endif							/* TORTURE_CLIENT_H */
