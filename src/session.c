/*-------------------------------------------------------------------------
 *
 * session.c
 *	  The list of grants that end with this connection.
 *
 * A backend remembers what it was granted for its session, so that
 * session_end.c can release it.  An entry may be out of date, because the grant
 * may have been rolled back, released, or have expired.  That does no harm: the
 * release names the process, which is stored in the row.
 *
 * If a backend cannot release its grants when it exits, the row still shows
 * that they have ended: the run of the server is the same, and there is no such
 * process (row.c).  After a crash of the server such a grant is an ordinary
 * lease.  A promoted standby cannot tell an old primary that has ended from one
 * that is only cut off and whose sessions continue.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "session.h"

static HTAB *grants = NULL;
static int	nreleased = 0;
static int	nfresh = 0;
static SubTransactionId newest = InvalidSubTransactionId;	/* of those added */
static pg_on_exit_callback release_at_exit = NULL;

void
dlock_session_init(pg_on_exit_callback at_exit)
{
	release_at_exit = at_exit;
}

/*
 * Call this before a wait begins.  Exit callbacks run in reverse order, and the
 * one that leaves the queue must be registered last.
 */
void
dlock_session_prepare(void)
{
	HASHCTL		info;

	if (grants != NULL)
		return;

	memset(&info, 0, sizeof(info));
	info.keysize = sizeof(int64);
	info.entrysize = sizeof(DlockSessionGrant);
	info.hcxt = TopMemoryContext;
	grants = hash_create("dlock session grants", 16, &info,
						 HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	before_shmem_exit(release_at_exit, (Datum) 0);
}

void
dlock_session_add(const DlockKey *key, Oid role, int64 version)
{
	DlockSessionGrant *grant;
	bool		found;
	char	   *copy;

	copy = MemoryContextAlloc(TopMemoryContext, key->len);
	memcpy(copy, key->data, key->len);
	grant = hash_search(grants, &version, HASH_ENTER, &found);
	if (found)
		pfree(grant->key);
	else
	{
		grant->fresh = true;
		grant->subid = GetCurrentSubTransactionId();
		newest = Max(newest, grant->subid);
		nfresh++;
	}
	grant->key = copy;
	grant->keylen = key->len;
	grant->role = role;
	grant->released = false;
}

/* This grant has ended.  It is forgotten when that commits. */
void
dlock_session_released(int64 version)
{
	DlockSessionGrant *grant;

	if (grants == NULL)
		return;
	grant = hash_search(grants, &version, HASH_FIND, NULL);
	if (grant != NULL && !grant->released)
	{
		grant->released = true;
		nreleased++;
	}
}

static void
forget(DlockSessionGrant *grant)
{
	pfree(grant->key);
	(void) hash_search(grants, &grant->version, HASH_REMOVE, NULL);
}

/*
 * What was released may be ours again.  What was added in this subtransaction,
 * or in those within it, which have higher numbers, is not ours any more.
 */
void
dlock_session_at_abort_sub(SubTransactionId subid)
{
	HASH_SEQ_STATUS scan;
	DlockSessionGrant *grant;

	if (nreleased == 0 && newest < subid)
		return;
	nreleased = 0;
	newest = InvalidSubTransactionId;

	hash_seq_init(&scan, grants);
	while ((grant = hash_seq_search(&scan)) != NULL)
	{
		grant->released = false;
		if (!grant->fresh)
			continue;
		if (grant->subid >= subid)
		{
			nfresh--;
			forget(grant);
		}
		else
			newest = Max(newest, grant->subid);
	}
}

/* A commit forgets what was released, a rollback what was added. */
void
dlock_session_at_end(bool committed)
{
	HASH_SEQ_STATUS scan;
	DlockSessionGrant *grant;

	if (nreleased == 0 && nfresh == 0)
		return;
	nreleased = 0;
	nfresh = 0;
	newest = InvalidSubTransactionId;

	hash_seq_init(&scan, grants);
	while ((grant = hash_seq_search(&scan)) != NULL)
	{
		bool		is_over = committed ? grant->released : grant->fresh;

		grant->released = false;
		grant->fresh = false;
		if (is_over)
			forget(grant);
	}
}

bool
dlock_session_any(void)
{
	return grants != NULL && hash_get_num_entries(grants) > 0;
}

/* A copy of the list, which does not change while its grants are released. */
DlockSessionGrant *
dlock_session_list(int *n)
{
	HASH_SEQ_STATUS scan;
	DlockSessionGrant *grant;
	DlockSessionGrant *list;

	*n = 0;
	if (!dlock_session_any())
		return NULL;

	list = palloc(hash_get_num_entries(grants) * sizeof(DlockSessionGrant));
	hash_seq_init(&scan, grants);
	while ((grant = hash_seq_search(&scan)) != NULL)
	{
		list[*n] = *grant;
		list[*n].key = pnstrdup(grant->key, grant->keylen);
		(*n)++;
	}
	return list;
}
