/*-------------------------------------------------------------------------
 *
 * session.c
 *	  Grants that end with their connection.
 *
 * A backend remembers the keys that it was granted for its session, and
 * releases them on its way out, however it leaves: the client says goodbye or
 * vanishes, or the backend is terminated.  The row has the process id, so
 * that a grant that another session has renewed for itself is left alone.
 * What is remembered need not be true (the grant may have been rolled back,
 * released, or have expired): the release finds out.  No version is
 * remembered, for a rollback may bring back the one before.
 *
 * Where nothing can be done on the way out, the row tells: if the run of the
 * server is the same and there is no such process, the grant counts for
 * nothing (store.c).  After a crash of the server it is like any lease: the
 * standby that was promoted cannot tell the end of the old primary from one
 * that is only cut off and whose session goes on.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "lock.h"
#include "session.h"
#include "wait.h"

typedef struct SessionGrant
{
	uint64		hash;			/* of the key; of two with the same, one is
								 * remembered */
	char	   *key;
	int			keylen;
	Oid			role;
	bool		released;		/* by a transaction that has not ended */
} SessionGrant;

static HTAB *grants = NULL;
static int	nreleased = 0;

/* As RemoveTempRelationsCallback() does for temporary tables. */
static void
release_all(int code, Datum arg)
{
	HASH_SEQ_STATUS scan;
	SessionGrant *grant;
	DlockStore	store;

	if (grants == NULL || hash_get_num_entries(grants) == 0)
		return;

	AbortOutOfAnyTransaction();
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());

	/* the extension may have been dropped; then so were the grants */
	if (!dlock_store_open(&store, true, true))
	{
		PopActiveSnapshot();
		CommitTransactionCommand();
		return;
	}
	dlock_store_close(&store, true);

	hash_seq_init(&scan, grants);
	while ((grant = hash_seq_search(&scan)) != NULL)
	{
		DlockRequest request = {0};
		DlockResult result;

		request.claim.op = DLOCK_RELEASE;
		request.claim.role = grant->role;
		request.claim.pid = MyProcPid;
		request.key = grant->key;
		request.keylen = grant->keylen;
		dlock_lock_execute(&request, &result);
	}

	PopActiveSnapshot();
	CommitTransactionCommand();
}

/*
 * To be called before a wait begins: callbacks for the exit are a stack, and
 * the one that leaves the queue must be the last.
 */
void
dlock_session_prepare(void)
{
	HASHCTL		info;

	if (grants != NULL)
		return;

	memset(&info, 0, sizeof(info));
	info.keysize = sizeof(uint64);
	info.entrysize = sizeof(SessionGrant);
	info.hcxt = TopMemoryContext;
	grants = hash_create("dlock session grants", 16, &info,
						 HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	before_shmem_exit(release_all, (Datum) 0);
}

void
dlock_session_add(const DlockKey *key, Oid role)
{
	SessionGrant *grant;
	bool		found;
	char	   *copy;

	copy = MemoryContextAlloc(TopMemoryContext, key->len);
	memcpy(copy, key->data, key->len);
	grant = hash_search(grants, &key->hash, HASH_ENTER, &found);
	if (found)
		pfree(grant->key);
	grant->key = copy;
	grant->keylen = key->len;
	grant->role = role;
	grant->released = false;
}

/* We released this key; that counts once it is committed. */
void
dlock_session_released(const DlockKey *key)
{
	SessionGrant *grant;

	if (grants == NULL)
		return;
	grant = hash_search(grants, &key->hash, HASH_FIND, NULL);
	if (grant != NULL && !grant->released)
	{
		grant->released = true;
		nreleased++;
	}
}

/* At the end of a transaction, or the rollback of a part of one. */
void
dlock_session_at_end(bool committed)
{
	HASH_SEQ_STATUS scan;
	SessionGrant *grant;

	if (nreleased == 0)
		return;
	nreleased = 0;

	hash_seq_init(&scan, grants);
	while ((grant = hash_seq_search(&scan)) != NULL)
	{
		if (!grant->released)
			continue;
		grant->released = false;
		if (committed)
		{
			pfree(grant->key);
			(void) hash_search(grants, &grant->hash, HASH_REMOVE, NULL);
		}
	}
}
