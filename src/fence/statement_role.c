/*-------------------------------------------------------------------------
 *
 * statement_role.c
 *	  The role that a fence trigger judges.
 *
 * A grant belongs to the role that is current when it is made, and only that
 * role can use it.  The SQL functions go by GetUserId().  For a trigger that is
 * not enough: PostgreSQL runs the DELETE or UPDATE of a referential action (ON
 * DELETE CASCADE and the like) as the owner of the referencing table.  A fence
 * on that table would then accept the owner's lock from every role that can
 * delete from the referenced table, and reject that role's own lock.  So a row
 * that a referential action writes is judged by the role that issued the
 * statement.  Whatever else runs inside of the action, such as a trigger of
 * another role, is judged by its own role.
 *
 * To tell these apart, we follow the statements that write, from the inside to
 * the outside.  A statement runs (ExecutorRun), and then its AFTER triggers fire
 * (ExecutorFinish), among them those that make referential actions.  While the
 * query of such an action runs, the security context has SECURITY_NOFORCE_RLS,
 * which nothing but ri_triggers.c sets.  What is nested in it inherits the flag:
 *
 * - If the statement around it does not have the flag, it is the query of the
 *   action itself.
 * - If the statement around it has the flag and is running, it is code of a
 *   trigger of that action.
 * - If the statement around it has the flag and its AFTER triggers are firing,
 *   it may be either.  It is refused if it may be an action: if the current role
 *   is the owner of the table.
 *
 * AFTER triggers of the referencing table fire at the end of the statement, too:
 * in PostgreSQL 15 to 17 as the role that issued it, from 18 on as the role that
 * was current when the trigger was queued, which in an action is the owner.  A
 * trigger that can be deferred may fire when nothing is known about the
 * statement any more; it accepts only the role of the session, as SET ROLE left
 * it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "executor/executor.h"
#include "miscadmin.h"
#include "utils/rel.h"

#include "compat.h"
#include "errors.h"
#include "fence/statement_role.h"

/* A statement that writes. */
typedef struct Statement
{
	struct Statement *around;
	bool		finishing;		/* its AFTER triggers are firing */
	bool		in_action;		/* it has the flag */
	Oid			role;			/* that issued it */
} Statement;

static Statement *innermost = NULL;

static ExecutorRun_hook_type prev_ExecutorRun = NULL;
static ExecutorFinish_hook_type prev_ExecutorFinish = NULL;

static bool
writes(const QueryDesc *query)
{
	return query->operation != CMD_SELECT || query->plannedstmt->hasModifyingCTE;
}

static void
enter(Statement *statement, bool finishing)
{
	statement->around = innermost;
	statement->finishing = finishing;
	statement->in_action = InNoForceRLSOperation();
	statement->role = GetUserId();
	innermost = statement;
}

static void
run_writing(DLOCK_EXECUTOR_RUN_ARGS)
{
	Statement	statement;

	enter(&statement, false);
	PG_TRY();
	{
		DLOCK_CALL_EXECUTOR_RUN(prev_ExecutorRun);
	}
	PG_FINALLY();
	{
		innermost = statement.around;
	}
	PG_END_TRY();
}

/* Most statements read only.  They need no frame of their own for PG_TRY. */
static void
run(DLOCK_EXECUTOR_RUN_ARGS)
{
	ExecutorRun_hook_type next = writes(query) ? run_writing : prev_ExecutorRun;

	DLOCK_CALL_EXECUTOR_RUN(next);
}

static void
call_finish(QueryDesc *query)
{
	if (prev_ExecutorFinish)
		prev_ExecutorFinish(query);
	else
		standard_ExecutorFinish(query);
}

static void
finish_writing(QueryDesc *query)
{
	Statement	statement;

	enter(&statement, true);
	PG_TRY();
	{
		call_finish(query);
	}
	PG_FINALLY();
	{
		innermost = statement.around;
	}
	PG_END_TRY();
}

static void
finish(QueryDesc *query)
{
	if (writes(query))
		finish_writing(query);
	else
		call_finish(query);
}

void
dlock_statement_role_init(void)
{
	prev_ExecutorRun = ExecutorRun_hook;
	ExecutorRun_hook = run;
	prev_ExecutorFinish = ExecutorFinish_hook;
	ExecutorFinish_hook = finish;
}

static void
cannot_tell(const TriggerData *data, const char *detail)
{
	ereport(ERROR,
			(errcode(ERRCODE_DLOCK_FENCED),
			 errmsg("cannot tell which role writes to table \"%s\"",
					RelationGetRelationName(data->tg_relation)),
			 errdetail_internal("%s", detail)));
}

static Oid
role_of_before_trigger(const TriggerData *data)
{
	const Statement *around;

	if (innermost == NULL || !innermost->in_action)
		return GetUserId();

	around = innermost->around;
	if (around == NULL)
		return GetOuterUserId();
	if (!around->in_action)
		return around->role;
	if (around->finishing && GetUserId() == data->tg_relation->rd_rel->relowner)
		cannot_tell(data, _("It is written by a referential action within another one."));
	return GetUserId();
}

Oid
dlock_statement_role_of_trigger(const TriggerData *data)
{
	if (data->tg_trigger->tgdeferrable)
	{
		if (GetUserId() != GetOuterUserId())
			cannot_tell(data, _("A deferrable trigger accepts only rows that the role of the session writes."));
		return GetUserId();
	}

	/* TRUNCATE is no such statement, and no referential action */
	if (TRIGGER_FIRED_BY_TRUNCATE(data->tg_event))
		return GetUserId();
	if (!TRIGGER_FIRED_AFTER(data->tg_event))
		return role_of_before_trigger(data);

	/* COPY is no such statement, either, and no referential action inserts */
	if (TRIGGER_FIRED_BY_INSERT(data->tg_event) ||
		innermost == NULL || !innermost->finishing)
		return GetUserId();
	return innermost->role;
}

/* Its name, or its number if it has been dropped. */
char *
dlock_statement_role_name(Oid role)
{
	char	   *name = GetUserNameFromId(role, true);

	return name != NULL ? name : psprintf("%u", role);
}
