/*-------------------------------------------------------------------------
 *
 * trigger.c
 *	  dlock_fence_trigger(): the fence as a trigger of a user's table.
 *
 * A writer that forgot the fence, or that has lost the lock, is rejected by
 * the table itself.  The arguments are templates, in which {column} stands
 * for a column of the row and everything else for itself:
 *
 *	dlock_fence_trigger('invoice:{id}')				token from dlock.token
 *	dlock_fence_trigger('invoice:{id}', '{token}')	token from a column
 *	dlock_fence_trigger('nightly-import')			one lock for the table
 *
 * A brace that is meant is doubled.  An UPDATE that moves a row from one key
 * to another would have to hold both, with one token, and is rejected.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/trigger.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/rel.h"

#include "compat.h"
#include "errors.h"
#include "funcs.h"
#include "guc.h"

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

/* NULL if a column of the template is null. */
static char *
expand(const char *template, Relation rel, HeapTuple row)
{
	TupleDesc	desc = RelationGetDescr(rel);
	StringInfoData out;

	initStringInfo(&out);
	for (const char *p = template; *p != '\0'; p++)
	{
		const char *end;
		char	   *column;
		char	   *value;
		int			attnum;

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
		column = pnstrdup(p + 1, end - p - 1);
		attnum = SPI_fnumber(desc, column);
		if (attnum <= 0)
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_COLUMN),
					 errmsg("column \"%s\" of table \"%s\" does not exist",
							column, RelationGetRelationName(rel)),
					 errdetail("It is named by argument \"%s\" of dlock_fence_trigger.", template)));
		value = SPI_getvalue(row, desc, attnum);
		if (value == NULL)
			return NULL;
		appendStringInfoString(&out, value);
		p = end;
	}
	return out.data;
}

static int64
find_token(const Trigger *trigger, Relation rel, HeapTuple row)
{
	const char *token = dlock_token;

	if (trigger->tgnargs > 1)
		token = expand(trigger->tgargs[1], rel, row);
	if (token == NULL || *token == '\0')
		ereport(ERROR,
				(errcode(ERRCODE_DLOCK_FENCED),
				 errmsg("table \"%s\" can be changed only with a fencing token",
						RelationGetRelationName(rel)),
				 trigger->tgnargs > 1 ?
				 errhint("Put the version of the lock into the column that trigger \"%s\" names.",
						 trigger->tgname) :
				 errhint("Acquire the lock, and in the transaction that writes run "
						 "SET LOCAL dlock.token = '<the version>'.")));
	return DatumGetInt64(DirectFunctionCall1(int8in, CStringGetDatum(token)));
}

static char *
find_key(const Trigger *trigger, Relation rel, HeapTuple row)
{
	char	   *key = expand(trigger->tgargs[0], rel, row);

	if (key == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("the lock key of this row of table \"%s\" is null",
						RelationGetRelationName(rel)),
				 errdetail("Trigger \"%s\" makes it of \"%s\".",
						   trigger->tgname, trigger->tgargs[0])));
	dlock_funcs_check_key(key, strlen(key));
	return key;
}

Datum
dlock_fence_trigger(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	HeapTuple	row = NULL;
	HeapTuple	result = NULL;
	int64		token;
	char	   *key;

	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function \"dlock_fence_trigger\" must be called as a trigger")));
	dlock_funcs_prevent_read_only("dlock_fence_trigger()");
	if (data->tg_trigger->tgnargs < 1 || data->tg_trigger->tgnargs > 2)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("trigger \"%s\" must name a lock key, and may name a token column",
						data->tg_trigger->tgname),
				 errhint("For instance: EXECUTE FUNCTION dlock_fence_trigger('invoice:{id}').")));

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

	key = find_key(data->tg_trigger, data->tg_relation, row);
	token = find_token(data->tg_trigger, data->tg_relation, row);
	dlock_funcs_fence(key, strlen(key), token);

	if (row != NULL && TRIGGER_FIRED_BY_UPDATE(data->tg_event))
	{
		char	   *old = find_key(data->tg_trigger, data->tg_relation,
								   data->tg_trigtuple);

		if (strcmp(old, key) != 0)
			ereport(ERROR,
					(errcode(ERRCODE_DLOCK_FENCED),
					 errmsg("cannot move a row from lock \"%s\" to lock \"%s\"", old, key),
					 errhint("Delete it while holding the one, and insert it while holding the other.")));
	}

	return PointerGetDatum(result);
}
