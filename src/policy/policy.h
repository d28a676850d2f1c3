/*-------------------------------------------------------------------------
 *
 * policy.h
 *	  What a role may do with keys of a prefix.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_POLICY_POLICY_H
#define DLOCK_POLICY_POLICY_H

#include "utils/relcache.h"

#include "rules/lock_rules.h"

extern Size dlock_policy_shmem_size(void);
extern void dlock_policy_shmem_init(void);

extern void dlock_policy_init(void);
extern Oid	dlock_policy_table(void);
extern void dlock_policy_changes(Relation rel);
extern void dlock_policy_check_request(const DlockKey *key, const DlockTerms *terms);
extern void dlock_policy_check_grant(const DlockKey *key, Oid role);
extern int64 dlock_policy_max_hold(const DlockKey *key, Oid role);
extern int	dlock_policy_max_priority(void);

#endif							/* DLOCK_POLICY_POLICY_H */
