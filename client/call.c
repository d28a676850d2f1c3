/*-------------------------------------------------------------------------
 *
 * call.c
 *	  One statement, sent until it is answered.
 *
 * Every statement of the library can be sent twice: an acquire has an owner,
 * which gets the same grant again, and the others name their grant.  So when a
 * connection breaks, a server goes down or an answer does not arrive, the
 * statement is sent to the next host that accepts us, until the caller's time
 * is up.  Nothing is ever cancelled.
 *
 * A server that is full, starting or shutting down is not silent: a call that
 * waits for a lock retries until its wait is over.
 *
 * Short calls go together with those of other threads (flight.c).  A call that
 * may take long has a connection of its own (own.c), if the bound of the handle
 * leaves one.  Otherwise it takes its turn among the flights, where it does not
 * wait: it is asked again a few times a second.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <string.h>

#include "call.h"
#include "clock.h"
#include "constants.h"
#include "flight.h"
#include "own.h"
#include "util.h"

void
dlock_call_init(DlockCall *call, const char *sql, int nparams,
				const char **params, int64_t timeout_ms)
{
	memset(call, 0, sizeof(*call));
	call->sql = sql;
	call->nparams = nparams;
	call->params = params;
	call->kind = DLOCK_OTHER;
	call->timeout_ms = timeout_ms;
	call->until = dlock_later(dlock_now(), timeout_ms);
}

/* Set those parameters that are known only when it is sent. */
void
dlock_call_set_params(DlockCall *call, const DlockConn *conn, int64_t now,
					  const char *row_limit, bool may_wait)
{
	if (call->ttl_param > 0)
	{
		if (*call->ttl_ms == 0)
			*call->ttl_ms = dlock_max(dlock_conn_default_ttl(conn), call->ttl_least);
		snprintf(call->ttl_text, sizeof(call->ttl_text), "%lld ms", (long long) *call->ttl_ms);
		call->params[call->ttl_param - 1] = call->ttl_text;
	}
	if (call->row_param > 0)
		call->params[call->row_param - 1] = row_limit;
	if (call->wait_param > 0)
	{
		int64_t		wait = may_wait ? dlock_max(call->wait_until - now, 0) : 0;

		snprintf(call->wait_text, sizeof(call->wait_text), "%lld ms", (long long) wait);
		call->params[call->wait_param - 1] =
			may_wait && call->wait_until == DLOCK_NEVER ? NULL : call->wait_text;
		call->polled = !may_wait;
	}
}

static bool
fits(const char *text, size_t max)
{
	return text == NULL || strlen(text) <= max;
}

/*
 * Would the server refuse it?  Then it goes by itself, so that it fails by itself
 * at once.  All but those about a ticket alone have the key as their first
 * parameter and the owner as their third; that of a request for more than a key,
 * the value as its fourth.
 */
bool
dlock_call_is_sound(const DlockCall *call)
{
	return call->kind == DLOCK_OTHER || call->kind == DLOCK_DEQUEUES ||
		(call->params[0][0] != '\0' && fits(call->params[0], DLOCK_MAX_KEY_BYTES) &&
		 fits(call->params[2], DLOCK_MAX_OWNER_BYTES) &&
		 (call->kind != DLOCK_TRIES || fits(call->params[3], DLOCK_MAX_VALUE_BYTES)));
}

/* DLOCK_OK: the caller frees call->reply. */
dlock_status
dlock_call(dlock_handle *handle, DlockCall *call, dlock_error *err)
{
	dlock_status status;

	if (call->conn != NULL)
		return dlock_own_session(handle, call, err);
	if (call->kind == DLOCK_OTHER && !call->once && dlock_own_call(handle, call, &status, err))
		return status;
	for (;;)
	{
		bool		in_doubt = call->in_doubt;

		dlock_flight_call(handle, call);
		call->in_doubt = call->in_doubt || in_doubt;
		if (!call->blocked)
			break;
		/* a row is in use: wait for it where that holds up nobody */
		if (dlock_own_call(handle, call, &status, err))
			return status;
		call->ready_at = dlock_now() + DLOCK_POLL_MS;
		if (call->ready_at >= call->until)
			break;
	}
	if (call->reply != NULL)
	{
		dlock_error_clear(err);
		return DLOCK_OK;
	}
	if (call->error.status == DLOCK_OK)
		call->error.status = DLOCK_UNREACHABLE;
	return dlock_error_copy(err, &call->error);
}
