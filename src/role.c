/*-------------------------------------------------------------------------
 *
 * role.c
 *	  The role that an operation is judged by.
 *
 * A grant belongs to the role that is current when it is made, and only that
 * role can use it.  The current role is normally GetUserId().  Referential
 * actions are the exception: PostgreSQL runs the DELETE or UPDATE of a cascade
 * as the owner of the referencing table.  If a fence on that table judged the
 * owner, it would accept the owner's lock from every role that may delete from
 * the referenced table, and reject the lock of that role.  So within a
 * referential action the role that issued the statement counts.
 *
 * PostgreSQL keeps that role in a local variable of its referential triggers.
 * These are AFTER triggers, which run in ExecutorFinish() of the statement
 * (referential actions cannot be deferred), so we record the current role
 * there.  The security context shows whether we are inside such an action: only
 * ri_triggers.c sets SECURITY_NOFORCE_RLS.
 *
 * AFTER triggers of the referencing table also run at the end of the statement.
 * In PostgreSQL 15 to 17 they run as the role that issued it.  From 18 on they
 * run as the role that was current when the trigger was queued, which is the
 * owner again.  A deferred trigger runs at commit.  There the role of the
 * session counts, as set by SET ROLE.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "executor/executor.h"
#include "miscadmin.h"

#include "role.h"

/* who issued the statement whose AFTER triggers are running, or InvalidOid */
static Oid	issuer = InvalidOid;

static ExecutorFinish_hook_type prev_ExecutorFinish = NULL;

static void
finish(QueryDesc *query)
{
	if (prev_ExecutorFinish)
		prev_ExecutorFinish(query);
	else
		standard_ExecutorFinish(query);
}

static void
note_issuer(QueryDesc *query)
{
	Oid			outer = issuer;

	/* what a referential action does is part of the statement */
	if (InNoForceRLSOperation() ||
		(query->operation == CMD_SELECT && !query->plannedstmt->hasModifyingCTE))
	{
		finish(query);
		return;
	}

	issuer = GetUserId();
	PG_TRY();
	{
		finish(query);
	}
	PG_FINALLY();
	{
		issuer = outer;
	}
	PG_END_TRY();
}

void
dlock_role_init(void)
{
	prev_ExecutorFinish = ExecutorFinish_hook;
	ExecutorFinish_hook = note_issuer;
}

Oid
dlock_role_current(void)
{
	if (!InNoForceRLSOperation())
		return GetUserId();

	/* no referential action is known to run outside of ExecutorFinish() */
	return OidIsValid(issuer) ? issuer : GetOuterUserId();
}

Oid
dlock_role_of_after_trigger(bool deferrable)
{
	if (OidIsValid(issuer))
		return issuer;
	return deferrable ? GetOuterUserId() : dlock_role_current();
}
