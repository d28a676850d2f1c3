/*-------------------------------------------------------------------------
 *
 * session.c
 *	  The grants that end with this connection: a list of them, and their release.
 *
 * They are released when the backend exits for any reason: the client
 * disconnects or vanishes, or the backend is terminated.  DISCARD ALL releases
 * them, too, as it does session-level advisory locks, because a pooler runs it
 * before it gives the connection to another client.  dlock_release_session()
 * does the same on request.
 *
 * The list may be out of date, because a grant may have expired or been taken.
 * That does no harm: the release names the process, which is stored in the row.
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
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "storage/ipc.h"
#include "tcop/utility.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "guc.h"
#include "journal.h"
#include "lock/lock.h"
#include "lock/session.h"
#include "rows/table.h"

typedef struct SessionGrant
{
	int64		version;		/* unique in the database; the hash key */
	char	   *key;
	int			keylen;
	Oid			role;
} SessionGrant;

static HTAB *grants = NULL;
static ProcessUtility_hook_type prev_ProcessUtility = NULL;

/*
 * The list
 */

/*
 * Remember a grant of the current transaction.  Called by acquire.c, which has
 * called dlock_session_prepare().  A grant that was renewed is in the list already.
 */
void
dlock_session_add(const DlockKey *key, Oid role, int64 version)
{
	SessionGrant *grant;
	bool		found;
	char	   *copy;

	dlock_journal_reserve();
	copy = MemoryContextAlloc(TopMemoryContext, key->len);
	memcpy(copy, key->data, key->len);
	grant = hash_search(grants, &version, HASH_ENTER, &found);
	if (found)
		pfree(grant->key);
	grant->key = copy;
	grant->keylen = key->len;
	grant->role = role;
	if (!found)
		(void) dlock_journal_add(DLOCK_NOTE_SESSION, &version, sizeof(version));
}

/* A grant is not ours any more, or does not end with the session.  Must not fail. */
static void
forget(int64 version)
{
	SessionGrant *grant;

	if (grants == NULL)
		return;
	grant = hash_search(grants, &version, HASH_FIND, NULL);
	if (grant == NULL)
		return;
	pfree(grant->key);
	(void) hash_search(grants, &version, HASH_REMOVE, NULL);
}

/* What was added is forgotten if it is rolled back. */
static void
end_session(const void *what, bool committed)
{
	if (!committed)
		forget(*(const int64 *) what);
}

/* What has ended is forgotten if that commits. */
static void
end_ended(const void *what, bool committed)
{
	if (committed)
		forget(*(const int64 *) what);
}

/* Has this session any grant that ends with it? */
static bool
has_any(void)
{
	return grants != NULL && hash_get_num_entries(grants) > 0;
}

/* A copy of the list, which does not change while its grants are released. */
static SessionGrant *
copy_list(int *n)
{
	HASH_SEQ_STATUS scan;
	SessionGrant *grant;
	SessionGrant *list;

	*n = 0;
	if (!has_any())
		return NULL;

	list = palloc(hash_get_num_entries(grants) * sizeof(SessionGrant));
	hash_seq_init(&scan, grants);
	while ((grant = hash_seq_search(&scan)) != NULL)
	{
		list[*n] = *grant;
		list[*n].key = pnstrdup(grant->key, grant->keylen);
		(*n)++;
	}
	return list;
}

/*
 * The release
 */

/*
 * Release those of the given role, or of all roles if that is InvalidOid, and
 * return how many there were.  A backend that exits cannot wait for another
 * transaction that is using a row, such as a fence.  It does not need to, because
 * the grant is not live without its process.  A backend that continues has to
 * wait.  If they are lost, because the client is gone, a grant with a delay
 * keeps others out for that long.
 */
int
dlock_session_release(Oid role, bool is_lost, bool wait)
{
	int			ngrants;
	int			released = 0;
	SessionGrant *list = copy_list(&ngrants);

	PushActiveSnapshot(GetTransactionSnapshot());
	for (int i = 0; i < ngrants; i++)
	{
		DlockRequest request = {.op = DLOCK_RELEASE};
		DlockResult result;

		if (OidIsValid(role) && role != list[i].role)
			continue;
		request.terms.role = list[i].role;
		request.by_version = true;
		request.version = list[i].version;
		request.pid = MyProcPid;
		request.is_lost = is_lost;
		dlock_key_set(&request.key, list[i].key, list[i].keylen);
		request.skip_used = !wait;
		dlock_lock_execute(&request, &result);
		if (result.answer == DLOCK_IS_RELEASED)
			released++;

		/* what is not ours any more need not be remembered either */
		(void) dlock_journal_add(DLOCK_NOTE_ENDED, &list[i].version,
								 sizeof(list[i].version));
	}
	PopActiveSnapshot();
	return released;
}

/*
 * As RemoveTempRelationsCallback() does for temporary tables.  A backend that
 * exits can be neither cancelled nor terminated, so it must not wait: not for a
 * lock on the table or its indexes, not for a standby, and not for a safe snapshot,
 * which a transaction that is SERIALIZABLE, READ ONLY and DEFERRABLE would do.  If it
 * gives up, the grants end with the process all the same.
 */
static void
release_at_exit(int code, Datum arg)
{
	if (!has_any())
		return;

	AbortOutOfAnyTransaction();
	DefaultXactIsoLevel = XACT_READ_COMMITTED;
	DefaultXactReadOnly = false;
	DefaultXactDeferrable = false;
	dlock_durable_releases = false;
	StartTransactionCommand();
	if (dlock_table_lock_if_free())
		(void) dlock_session_release(InvalidOid, true, false);
	CommitTransactionCommand();
}

/*
 * Called by acquire.c before a request for a session lock begins to wait.  Exit
 * callbacks run in reverse order, and the one that leaves the queue must be
 * registered last.
 */
void
dlock_session_prepare(void)
{
	HASHCTL		info;

	if (grants != NULL)
		return;

	memset(&info, 0, sizeof(info));
	info.keysize = sizeof(int64);
	info.entrysize = sizeof(SessionGrant);
	info.hcxt = TopMemoryContext;
	grants = hash_create("dlock session grants", 16, &info,
						 HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	before_shmem_exit(release_at_exit, (Datum) 0);
}

/* The extension may have been dropped, and the grants with it. */
static void
release_at_discard(void)
{
	DlockTable	store;

	if (!has_any())
		return;
	if (dlock_table_open(&store, true, true))
	{
		dlock_table_close(&store, true);
		(void) dlock_session_release(InvalidOid, true, true);
	}
}

/* A hook: after DISCARD ALL, whatever else it does, the session locks are released. */
static void
process_utility(PlannedStmt *statement, const char *text, bool readOnlyTree,
				ProcessUtilityContext context, ParamListInfo params,
				QueryEnvironment *environment, DestReceiver *dest,
				QueryCompletion *completion)
{
	bool		discards = IsA(statement->utilityStmt, DiscardStmt) &&
		((DiscardStmt *) statement->utilityStmt)->target == DISCARD_ALL;

	if (prev_ProcessUtility)
		prev_ProcessUtility(statement, text, readOnlyTree, context, params,
							environment, dest, completion);
	else
		standard_ProcessUtility(statement, text, readOnlyTree, context, params,
								environment, dest, completion);
	if (discards)
		release_at_discard();
}

/* At load time. */
void
dlock_session_init(void)
{
	dlock_journal_register(DLOCK_NOTE_SESSION, end_session);
	dlock_journal_register(DLOCK_NOTE_ENDED, end_ended);
	prev_ProcessUtility = ProcessUtility_hook;
	ProcessUtility_hook = process_utility;
}
