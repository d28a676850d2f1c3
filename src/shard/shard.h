/*-------------------------------------------------------------------------
 *
 * shard.h
 *	  The shards of keys, and which of them this database serves.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_SHARD_SHARD_H
#define DLOCK_SHARD_SHARD_H

#include "utils/multirangetypes.h"

#include "rows/table.h"
#include "rules/key.h"

extern void dlock_shard_init(void);
extern void dlock_shard_check(const DlockTable *store, const DlockKey *key);
extern void dlock_shard_serve(const MultirangeType *shards);
extern void dlock_shard_changed(void);
extern bool dlock_shard_is_changed(void);

#endif							/* DLOCK_SHARD_SHARD_H */
