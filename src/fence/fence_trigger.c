/*-------------------------------------------------------------------------
 *
 * fence_trigger.c
 *	  dlock_fence_trigger(): the fence as a trigger of a user's table.
 *
 * With this trigger, the table itself rejects a writer that did not call the
 * fence or that has lost the lock.  The arguments are templates, in which
 * {column} stands for the value of a column of the row:
 *
 *	dlock_fence_trigger('invoice:{id}')				token from dlock.token
 *	dlock_fence_trigger('invoice:{id}', '{token}')	token from a column
 *	dlock_fence_trigger('nightly-import')			one lock for the table
 *
 * A literal brace is doubled.  An UPDATE that moves a row from one key to
 * another is rejected, because it would need both locks and has only one token.
 *
 * key_text.c turns a value into text.  statement_role.c says which role counts when a
 * referential action writes.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/rel.h"

#include "compat.h"
#include "errors.h"
#include "fence/fence_trigger.h"
#include "fence/statement_role.h"
#include "functions/arguments.h"
#include "guc.h"
#include "lock/lock.h"
#include "stats/stats.h"

PG_FUNCTION_INFO_V1(dlock_fence_trigger);

static void
bad_template(const char *template, const char *problem)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid argument \"%s\" of dlock_fence_trigger", template),
			 errdetail("%s", problem),
			 errhint("Write {column} for the value of a column, and {{ or }} for a brace.")));
}

/*
 * The text of a column, or NULL if it is null.  A generated column has no
 * value yet when a BEFORE trigger fires, and a virtual one never has one.
 */
static char *
column_text(const TriggerData *data, HeapTuple row, const char *name,
			const char *template)
{
	Relation	rel = data->tg_relation;
	TupleDesc	desc = RelationGetDescr(rel);
	int			attnum = SPI_fnumber(desc, name);
	Form_pg_attribute att;
	Datum		value;
	bool		isnull;

	if (attnum <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_COLUMN),
				 errmsg("column \"%s\" of table \"%s\" does not exist",
						name, RelationGetRelationName(rel)),
				 errdetail("It is named by argument \"%s\" of dlock_fence_trigger.", template)));

	att = TupleDescAttr(desc, attnum - 1);
	if (DLOCK_IS_VIRTUAL(att) ||
		(att->attgenerated != '\0' && TRIGGER_FIRED_BEFORE(data->tg_event) &&
		 !TRIGGER_FIRED_BY_DELETE(data->tg_event)))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("generated column \"%s\" of table \"%s\" has no value when trigger \"%s\" fires",
						name, RelationGetRelationName(rel), data->tg_trigger->tgname),
				 DLOCK_IS_VIRTUAL(att) ?
				 errhint("Name the columns that it is computed from.") :
				 errhint("Name the columns that it is computed from, or create the trigger AFTER instead of BEFORE.")));

	value = heap_getattr(row, attnum, desc, &isnull);
	return isnull ? NULL : dlock_key_text(value, att);
}

/* NULL if a column of the template is null. */
static char *
expand(const char *template, const TriggerData *data, HeapTuple row)
{
	StringInfoData out;

	initStringInfo(&out);
	for (const char *p = template; *p != '\0'; p++)
	{
		const char *end;
		char	   *value;

		if ((*p == '{' || *p == '}') && p[1] == *p)
		{
			appendStringInfoChar(&out, *p++);
			continue;
		}
		if (*p == '}')
			bad_template(template, "There is a closing brace without an opening one.");
		if (*p != '{')
		{
			appendStringInfoChar(&out, *p);
			continue;
		}

		end = strchr(p, '}');
		if (end == NULL)
			bad_template(template, "A brace is not closed.");
		if (row == NULL)
			bad_template(template, "A column can be named only in a trigger FOR EACH ROW.");
		value = column_text(data, row, pnstrdup(p + 1, end - p - 1), template);
		if (value == NULL)
			return NULL;
		appendStringInfoString(&out, value);
		p = end;
	}
	return out.data;
}

static int64
find_token(const TriggerData *data, HeapTuple row)
{
	const Trigger *trigger = data->tg_trigger;
	const char *token = dlock_token;
	char	   *end;
	int64		version;

	if (trigger->tgnargs > 1)
		token = expand(trigger->tgargs[1], data, row);
	if (token == NULL || *token == '\0')
	{
		dlock_stats_count(DLOCK_STAT_FENCE_REJECTED);
		ereport(ERROR,
				(errcode(ERRCODE_DLOCK_FENCED),
				 errmsg("table \"%s\" can be changed only with a fencing token",
						RelationGetRelationName(data->tg_relation)),
				 trigger->tgnargs > 1 ?
				 errhint("Put the version of the lock into the column that trigger \"%s\" names.",
						 trigger->tgname) :
				 errhint("Acquire the lock, and in the transaction that writes run "
						 "SET LOCAL dlock.token = '<the version>'.")));
	}

	/* a token that cannot be a version fits no lock */
	errno = 0;
	version = strtoi64(token, &end, 10);
	if (errno != 0 || *end != '\0')
	{
		dlock_stats_count(DLOCK_STAT_FENCE_REJECTED);
		ereport(ERROR,
				(errcode(ERRCODE_DLOCK_FENCED),
				 errmsg("\"%s\" is not a fencing token", token),
				 errdetail("A fencing token is the number that dlock_acquire returned.")));
	}
	return version;
}

static char *
find_key(const TriggerData *data, HeapTuple row)
{
	const Trigger *trigger = data->tg_trigger;
	char	   *key = expand(trigger->tgargs[0], data, row);

	if (key == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("the lock key of this row of table \"%s\" is null",
						RelationGetRelationName(data->tg_relation)),
				 errdetail("Trigger \"%s\" builds it from \"%s\".",
						   trigger->tgname, trigger->tgargs[0])));
	dlock_arguments_check_key(key, strlen(key));
	return key;
}

/* Is the trigger defined so that it can fence? */
static void
check_trigger(const TriggerData *data)
{
	const Trigger *trigger = data->tg_trigger;

	if (trigger->tgnargs < 1 || trigger->tgnargs > 2)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("trigger \"%s\" must name a lock key, and may name a token column",
						trigger->tgname),
				 errhint("For instance: EXECUTE FUNCTION dlock_fence_trigger('invoice:{id}').")));

	/* such a trigger would have to write the row itself */
	if (TRIGGER_FIRED_INSTEAD(data->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("dlock_fence_trigger cannot be an INSTEAD OF trigger"),
				 errhint("Create trigger \"%s\" on the table behind view \"%s\".",
						 trigger->tgname, RelationGetRelationName(data->tg_relation))));
}

/* What has become of the grant that a fence was to protect. */
static const char *
why_not_held(const DlockRequest *request, const DlockResult *result)
{
	const char *holder;

	if (result->answer == DLOCK_IS_NOT_HELD)
		return _("It has expired, was released, or was never acquired.");
	if (result->version != request->version)
		return _("It is held by another grant.");
	holder = GetUserNameFromId(result->role, true);
	return psprintf(_("It is held with this version by role \"%s\"; you are \"%s\"."),
					holder != NULL ? holder : _("unknown"),
					GetUserNameFromId(request->terms.role, false));
}

/*
 * Lock the grant of this version until the transaction ends, or raise an error if it
 * is not held.  For dlock_fence(), the trigger and the fence of a connection; a
 * trigger accepts an exclusive grant only.  The hint is for those that call no
 * function, or NULL.
 */
void
dlock_fence_require(const DlockKey *key, int64 version, Oid role, bool exclusive_only,
					const char *hint)
{
	DlockRequest request = {.op = DLOCK_FENCE};
	DlockResult result;
	char	   *shown;

	request.terms.role = role;
	request.by_version = true;
	request.version = version;
	request.key = *key;
	request.exclusive_only = exclusive_only;

	dlock_lock_execute(&request, &result);
	if (result.answer == DLOCK_IS_HELD)
		return;

	dlock_stats_count(DLOCK_STAT_FENCE_REJECTED);
	shown = pnstrdup(key->data, key->len);
	ereport(ERROR,
			(errcode(ERRCODE_DLOCK_FENCED),
			 errmsg("lock \"%s\" is not held with version %lld", shown, (long long) version),
			 errdetail_internal("%s", why_not_held(&request, &result)),
			 hint != NULL ? errhint("%s", hint) :
			 errhint("Roll back, acquire the lock again, and repeat the work with the new version.")));
}

Datum
dlock_fence_trigger(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	HeapTuple	row = NULL;
	HeapTuple	result = NULL;
	int64		token;
	char	   *key;
	DlockKey	fenced;

	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function \"dlock_fence_trigger\" must be called as a trigger")));
	dlock_arguments_prevent_read_only("dlock_fence_trigger()");
	check_trigger(data);

	if (TRIGGER_FIRED_FOR_ROW(data->tg_event))
	{
		row = data->tg_trigtuple;
		result = row;
		if (TRIGGER_FIRED_BY_UPDATE(data->tg_event))
		{
			row = data->tg_newtuple;
			result = row;
		}
	}

	key = find_key(data, row);
	token = find_token(data, row);
	dlock_key_set(&fenced, key, strlen(key));
	dlock_fence_require(&fenced, token, dlock_statement_role_of_trigger(data), true, NULL);

	if (row != NULL && TRIGGER_FIRED_BY_UPDATE(data->tg_event))
	{
		char	   *old = find_key(data, data->tg_trigtuple);

		if (strcmp(old, key) != 0)
		{
			dlock_stats_count(DLOCK_STAT_FENCE_REJECTED);
			ereport(ERROR,
					(errcode(ERRCODE_DLOCK_FENCED),
					 errmsg("cannot move a row from lock \"%s\" to lock \"%s\"", old, key),
					 errhint("Delete the row while holding the first lock, and insert it while holding the second.")));
		}
	}

	return PointerGetDatum(result);
}
