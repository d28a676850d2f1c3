/*-------------------------------------------------------------------------
 *
 * policy.h
 *	  What a role may do with keys of a prefix.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_POLICY_POLICY_H
#define DLOCK_POLICY_POLICY_H

#include "rules/lock_rules.h"

/* Are there none in this database, as far as is known? */
extern bool dlock_policy_none;

extern Size dlock_policy_shmem_size(void);
extern void dlock_policy_shmem_init(void);

extern void dlock_policy_init(void);
extern Oid	dlock_policy_table(void);
extern void dlock_policy_judge_request(const DlockRequest *request);
extern int64 dlock_policy_find_max_hold(const DlockKey *key, Oid role);
extern void dlock_policy_judge_grant(const char *key, int keylen, Oid role);

/*
 * Raise an error unless this role may have this key, for so long, and with this
 * priority.  Every entrance to a grant calls this, and the next one when a new
 * grant is written.
 */
static inline void
dlock_policy_check_request(const DlockRequest *request)
{
	if (unlikely(!dlock_policy_none))
		dlock_policy_judge_request(request);
}

/* Raise an error if this role has too many locks now. */
static inline void
dlock_policy_check_grant(const char *key, int keylen, Oid role)
{
	if (unlikely(!dlock_policy_none))
		dlock_policy_judge_grant(key, keylen, role);
}

/* How long a grant of this role may be held at most; 0: without limit. */
static inline int64
dlock_policy_max_hold(const DlockKey *key, Oid role)
{
	return likely(dlock_policy_none) ? 0 : dlock_policy_find_max_hold(key, role);
}

#endif							/* DLOCK_POLICY_POLICY_H */
