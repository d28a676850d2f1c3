/*-------------------------------------------------------------------------
 *
 * client.h
 *	  What the files of the torture client share.
 *
 *-------------------------------------------------------------------------
 */
#ifndef TORTURE_CLIENT_H
#define TORTURE_CLIENT_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#define KEY_SIZE 16
#define OWNER_SIZE 32
#define SHARED_KEYS 4

extern int	client;				/* our number */
extern long op;					/* number of the last operation */
extern volatile sig_atomic_t stopping;

extern int	below(int n);
extern bool chance(int percent);
extern void rest(int ms);

/* A token that is perhaps no longer good, to try later. */
extern void remember(const char *key, int64_t version);
extern void do_write(const char *key, int64_t version, int left_ms);

#endif							/* TORTURE_CLIENT_H */
