/*-------------------------------------------------------------------------
 *
 * pool.c
 *	  The connections of a handle: how many there are, and those that are not
 *	  in use.
 *
 * A connection is used by one thread at a time.  There are at most
 * max_connections: one for the main flight, one for the renewal thread, and the
 * rest ("spare") for calls that need one of their own and for the second flight.  So
 * neither of the first two ever has to wait for one.  Those of session locks do not
 * count.
 *
 * A connection that is not in use stays here for the next flight, or for the
 * renewal thread, which looks here before it opens one.  So a handle with one
 * lock needs only one connection, even if the server has no other left: the
 * renewal thread lends its connection to a flight that finds none here, if
 *
 *	  it has nothing to renew, as when the last lock is released, or
 *	  the server accepts no more connections.
 *
 * A connection that listens must be read, so it is returned to the renewal
 * thread and not to the pool.
 *
 *-------------------------------------------------------------------------
 */
#include "clock.h"
#include "pool.h"
#include "roster.h"

static bool
has_active_lock(const dlock_handle *handle)
{
	for (const dlock_lock *lock = handle->locks; lock != NULL; lock = lock->next)
		if (lock->hold == DLOCK_HOLD_OURS && !lock->silent)
			return true;
	return false;
}

/*
 * Ask the renewal thread for its connection; the caller has the mutex.  What it
 * was given back, and has not noticed yet, needs no asking.
 */
static void
borrow(dlock_handle *handle, int64_t until)
{
	if (handle->returned != NULL)
	{
		handle->idle[handle->nidle++] = handle->returned;
		handle->returned = NULL;
		return;
	}
	if (!handle->lends)
		return;
	until = dlock_min(until, dlock_now() + DLOCK_LEND_MS);
	handle->wanted++;
	dlock_roster_wake(handle);
	while (handle->nidle == 0 && handle->lends && dlock_roster_wait(handle, until))
		;
	handle->wanted--;
}

/* One more.  NULL: no memory. */
DlockConn  *
dlock_pool_new(dlock_handle *handle)
{
	DlockConn  *conn = dlock_conn_new(handle->target);

	if (conn != NULL)
		handle->nconns++;
	return conn;
}

/* Close it.  NULL is allowed. */
void
dlock_pool_drop(dlock_handle *handle, DlockConn *conn)
{
	if (conn != NULL)
		handle->nconns--;
	dlock_conn_free(conn);
}

/* One that is ready, or a new one; NULL: no memory. */
DlockConn  *
dlock_pool_take(dlock_handle *handle, bool may_borrow, int64_t until)
{
	/* what is being returned to the renewal thread counts, too */
	if (handle->nidle == 0 &&
		((may_borrow && !has_active_lock(handle)) || handle->nconns >= handle->max_connections))
		borrow(handle, until);
	return handle->nidle > 0 ? handle->idle[--handle->nidle] : dlock_pool_new(handle);
}

/* The server is full: one that is open, or NULL. */
DlockConn  *
dlock_pool_take_open(dlock_handle *handle, bool may_borrow, int64_t until)
{
	if (may_borrow && handle->nidle == 0)
		borrow(handle, until);
	return handle->nidle > 0 ? handle->idle[--handle->nidle] : NULL;
}

/* One beside those for the main flight and renewals; NULL: there is none. */
DlockConn  *
dlock_pool_spare(dlock_handle *handle, bool may_borrow, int64_t until)
{
	DlockConn  *conn;

	if (handle->nspare >= handle->max_connections - DLOCK_MIN_CONNECTIONS)
		return NULL;
	handle->nspare++;
	conn = dlock_pool_take(handle, may_borrow, until);
	if (conn == NULL)
		handle->nspare--;
	return conn;
}

/* Keep it for the next call, if it can still be used. */
void
dlock_pool_give(dlock_handle *handle, DlockConn *conn)
{
	if (dlock_conn_state(conn) == DLOCK_CONN_READY)
	{
		if (dlock_conn_listens(conn))
		{
			if (handle->returned == NULL)
			{
				handle->returned = conn;
				dlock_roster_wake(handle);
				return;
			}
		}
		else if (handle->nidle < DLOCK_POOL_SIZE)
		{
			handle->idle[handle->nidle++] = conn;
			return;
		}
	}
	dlock_pool_drop(handle, conn);
}

void
dlock_pool_give_spare(dlock_handle *handle, DlockConn *conn)
{
	handle->nspare--;
	dlock_pool_give(handle, conn);
}

/*
 * There was no answer on a connection.  Those that are not in use lead to the same server,
 * and each of them would cost another timeout.
 */
void
dlock_pool_distrust(dlock_handle *handle)
{
	while (handle->nidle > 0)
		dlock_pool_drop(handle, handle->idle[--handle->nidle]);
}

void
dlock_pool_close(dlock_handle *handle)
{
	dlock_conn_free(handle->returned);
	handle->returned = NULL;
	while (handle->nidle > 0)
		dlock_conn_free(handle->idle[--handle->nidle]);
}

/*
 * Close a connection on which the server may still send something.  If it were
 * closed before that, the server would log an error.  So wait, until then at
 * most.
 */
void
dlock_pool_finish(DlockConn *conn, int64_t until)
{
	while (conn != NULL &&
		   ((dlock_conn_connecting(conn) && dlock_conn_state(conn) != DLOCK_CONN_RESOLVING) ||
			dlock_conn_state(conn) == DLOCK_CONN_BUSY))
	{
		if (dlock_now() >= until)
			break;
		dlock_conn_work(conn, until);
	}
	dlock_conn_free(conn);
}
