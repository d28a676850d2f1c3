/*-------------------------------------------------------------------------
 *
 * pool.c
 *	  The connections of a handle that are not in use.
 *
 * A connection is used by one thread at a time.  One that is not in use stays
 * here for the next call, or for the renewal thread, which looks here before it
 * opens one.  So a handle with one lock needs only one connection, even if the
 * server has no other left: the renewal thread lends its connection to a call
 * that finds none here, if
 *
 *	  it has nothing to renew, as when the last lock is released, or
 *	  the server accepts no more connections, and the call is a short one.
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

/* One that is ready, or a new one; NULL: no memory. */
DlockConn  *
dlock_pool_take(dlock_handle *handle, bool may_borrow, int64_t until)
{
	DlockConn  *conn = NULL;

	pthread_mutex_lock(&handle->mutex);
	if (may_borrow && handle->nidle == 0 && !has_active_lock(handle))
		borrow(handle, until);
	if (handle->nidle > 0)
		conn = handle->idle[--handle->nidle];
	pthread_mutex_unlock(&handle->mutex);
	return conn != NULL ? conn : dlock_conn_new(handle->target);
}

/* The server is full: one that is open, or NULL. */
DlockConn  *
dlock_pool_take_open(dlock_handle *handle, bool may_borrow, int64_t until)
{
	DlockConn  *conn = NULL;

	pthread_mutex_lock(&handle->mutex);
	if (may_borrow && handle->nidle == 0)
		borrow(handle, until);
	if (handle->nidle > 0)
		conn = handle->idle[--handle->nidle];
	pthread_mutex_unlock(&handle->mutex);
	return conn;
}

/* Keep it for the next call, if it can still be used. */
void
dlock_pool_give(dlock_handle *handle, DlockConn *conn)
{
	if (conn != NULL && dlock_conn_state(conn) == DLOCK_CONN_READY)
	{
		pthread_mutex_lock(&handle->mutex);
		if (dlock_conn_listens(conn))
		{
			if (handle->returned == NULL)
			{
				handle->returned = conn;
				conn = NULL;
				dlock_roster_wake(handle);
			}
		}
		else if (handle->nidle < DLOCK_POOL_SIZE)
		{
			handle->idle[handle->nidle++] = conn;
			conn = NULL;
		}
		pthread_mutex_unlock(&handle->mutex);
	}
	dlock_conn_free(conn);
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
