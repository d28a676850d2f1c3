/*-------------------------------------------------------------------------
 *
 * quota.h
 *	  How many locks a role may still take under a policy.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_QUOTA_H
#define DLOCK_QUOTA_H

/* One count of rows, from its beginning to its end. */
typedef struct DlockCount
{
	uint64		account;
	uint64		began;
} DlockCount;

extern Size dlock_quota_shmem_size(void);
extern void dlock_quota_shmem_init(void);

extern bool dlock_quota_take(uint64 account);
extern void dlock_quota_begin_count(DlockCount *count, uint64 account);
extern void dlock_quota_end_count(const DlockCount *count, int64 room);

#endif							/* DLOCK_QUOTA_H */
