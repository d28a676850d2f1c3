/*-------------------------------------------------------------------------
 *
 * dlock_test.c
 *	  Functions for the tests that the released library does not have.
 *
 * scripts/test builds and installs this module; the tests declare the functions
 * that they need.  It has its own copy of the code that it includes, and attaches
 * to the shared memory that dlock has created.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "common/pg_prng.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "storage/lwlock.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "rows/row_hint.c"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(dlock_test_lose_hints);
PG_FUNCTION_INFO_V1(dlock_test_set_hint);
PG_FUNCTION_INFO_V1(dlock_test_poison_hints);
PG_FUNCTION_INFO_V1(dlock_test_hash);
PG_FUNCTION_INFO_V1(dlock_test_run_at_commit);

uint64		dlock_key_seed;

static void
attach(void)
{
	bool		found;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	dlock_key_seed = *(uint64 *) ShmemInitStruct("dlock seed", sizeof(uint64), &found);
	hints = ShmemInitStruct("dlock hints", dlock_row_hint_shmem_size(), &found);
	LWLockRelease(AddinShmemInitLock);
	if (!found)
		elog(ERROR, "dlock is not loaded via \"shared_preload_libraries\"");
}

/* Forgets all hints. */
Datum
dlock_test_lose_hints(PG_FUNCTION_ARGS)
{
	attach();
	for (int i = 0; i < HINTS; i++)
		pg_atomic_write_u64(&hints[i], EMPTY);
	PG_RETURN_VOID();
}

static void
set_hint_of(text *arg, int64 slot, ItemPointer tid)
{
	DlockKey	key;

	attach();
	dlock_key_set(&key, VARDATA_ANY(arg), VARSIZE_ANY_EXHDR(arg));
	dlock_row_hint_set(dlock_key_slot_hash(&key, slot), tid);
}

/* Stores a hint for the given key and slot, or version of a place. */
Datum
dlock_test_set_hint(PG_FUNCTION_ARGS)
{
	set_hint_of(PG_GETARG_TEXT_PP(0), PG_GETARG_INT64(1),
				(ItemPointer) PG_GETARG_POINTER(2));
	PG_RETURN_VOID();
}

/*
 * Stores a hint for the head of the given key whose tuple id is right, wrong or
 * impossible by chance.
 */
Datum
dlock_test_poison_hints(PG_FUNCTION_ARGS)
{
	int32		blocks = PG_GETARG_INT32(1);
	uint64		dice = pg_prng_uint64(&pg_global_prng_state);
	ItemPointerData tid;

	ItemPointerSet(&tid, (BlockNumber) (dice % ((uint64) blocks + 1)),
				   (OffsetNumber) ((dice >> 32) % 400 + 1));
	if (dice >> 60 == 0)
		ItemPointerSet(&tid, MaxBlockNumber, FirstOffsetNumber);
	set_hint_of(PG_GETARG_TEXT_PP(0), DLOCK_HEAD, &tid);
	PG_RETURN_VOID();
}

/* The hash of a key, given the number of its database, or of an owner and its role. */
Datum
dlock_test_hash(PG_FUNCTION_ARGS)
{
	text	   *arg = PG_GETARG_TEXT_PP(0);

	attach();
	PG_RETURN_INT64((int64) dlock_key_hash_text(VARDATA_ANY(arg), VARSIZE_ANY_EXHDR(arg),
												PG_GETARG_OID(1)));
}

static char *at_commit = NULL;

static void
run_at_commit(XactEvent event, void *arg)
{
	char	   *sql = at_commit;

	if (event != XACT_EVENT_PRE_COMMIT || sql == NULL)
		return;
	at_commit = NULL;
	PushActiveSnapshot(GetTransactionSnapshot());
	SPI_connect();
	SPI_execute(sql, false, 0);
	SPI_finish();
	PopActiveSnapshot();
	pfree(sql);
}

/* As another extension does: the end of this transaction runs this statement. */
Datum
dlock_test_run_at_commit(PG_FUNCTION_ARGS)
{
	static bool registered = false;

	if (!registered)
		RegisterXactCallback(run_at_commit, NULL);
	registered = true;
	at_commit = MemoryContextStrdup(TopMemoryContext, text_to_cstring(PG_GETARG_TEXT_PP(0)));
	PG_RETURN_VOID();
}
