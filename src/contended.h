/*-------------------------------------------------------------------------
 *
 * contended.h
 *	  The keys that are most waited for.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_CONTENDED_H
#define DLOCK_CONTENDED_H

#include "key.h"

#define DLOCK_MAX_CONTENDED	100

typedef struct DlockContended
{
	int64		weight;			/* for the order */
	int64		busy;
	int64		waits;
	int64		wait_time;		/* us */
	int			keylen;
	char		key[DLOCK_MAX_KEY];
} DlockContended;

extern Size dlock_contended_shmem_size(void);
extern void dlock_contended_shmem_init(void);

extern void dlock_contended_busy(const DlockKey *key);
extern void dlock_contended_waited(const DlockKey *key, int64 us);
extern DlockContended *dlock_contended_list(int *n);
extern void dlock_contended_reset(void);

#endif							/* DLOCK_CONTENDED_H */
