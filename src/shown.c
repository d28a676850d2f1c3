/*-------------------------------------------------------------------------
 *
 * shown.c
 *	  What the functions behind the views have in common.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_authid.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/timestamp.h"

#include "shown.h"
#include "state.h"

/* May the current role see the owner and the value of every grant? */
bool
dlock_shown_sees_all(void)
{
	return has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS);
}

/* Only members of the role see owner and value. */
bool
dlock_shown_may_see(bool sees_all, Oid role)
{
	return sees_all || has_privs_of_role(GetUserId(), role);
}

/*
 * The script of an older version knows only the first columns.  That of a newer
 * version may have columns that this library cannot fill.
 */
void
dlock_shown_check_columns(const ReturnSetInfo *rsinfo, int known)
{
	if (rsinfo->setDesc->natts > known)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the library of dlock is older than the extension in this database"),
				 errdetail("The library is version %s.", DLOCK_VERSION),
				 errhint("Install the library of the extension's version and restart the server.")));
}

Datum
dlock_shown_interval(int64 us)
{
	Interval   *span = palloc0(sizeof(Interval));

	span->time = us;
	return IntervalPGetDatum(span);
}

/* 1: exclusive, N: one of so many places, NULL: shared. */
Datum
dlock_shown_slots(int32 slots, bool *isnull)
{
	*isnull = slots == DLOCK_SHARED;
	return Int32GetDatum(slots);
}
