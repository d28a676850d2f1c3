/*-------------------------------------------------------------------------
 *
 * sql.h
 *	  The statements.  Their parameters are described in sql.c.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_SQL_H
#define DLOCK_SQL_H

/* The type of a parameter. */
typedef enum DlockType
{
	DLOCK_TYPE_NONE,			/* there is none */
	DLOCK_TYPE_TEXT,
	DLOCK_TYPE_INT4,
	DLOCK_TYPE_INT8,
	DLOCK_TYPE_BOOL,
	DLOCK_TYPE_INTERVAL			/* milliseconds, as in "5 ms" */
} DlockType;

/*
 * How a call goes together with others of its kind.  text follows the word
 * SELECT; it returns the number of the call, from 1, and three columns of text,
 * the first of which are those of the statement for one call.  Its parameters
 * are the first ones of that statement, as arrays of these types.
 */
typedef struct DlockPart
{
	const char *text;
	DlockType	types[14];		/* the last one is none */
	int			is_limited;		/* one more parameter is lock_timeout */
} DlockPart;

/* The order in which they are executed. */
typedef enum DlockKind
{
	DLOCK_DEQUEUES,
	DLOCK_RELEASES,
	DLOCK_REFRESHES,
	DLOCK_CHECKS,
	DLOCK_LAST_QUICK = DLOCK_CHECKS,	/* the others are to be flushed */
	DLOCK_TRIES_FOR_KEY,
	DLOCK_TRIES,
	DLOCK_ENQUEUES,
	DLOCK_CLAIMS,
	DLOCK_KINDS,
	DLOCK_OTHER = DLOCK_KINDS	/* always goes by itself */
} DlockKind;

extern const DlockPart dlock_sql_parts[DLOCK_KINDS];

extern const char dlock_sql_lookup[];
extern const char dlock_sql_schema[];
extern const char dlock_sql_fence[];
extern const char dlock_sql_fence_connection[];
extern const char dlock_sql_probe[];
extern const char dlock_sql_listen[];
extern const char dlock_sql_try[];
extern const char dlock_sql_wait[];
extern const char dlock_sql_try_all[];
extern const char dlock_sql_wait_all[];
extern const char dlock_sql_release[];
extern const char dlock_sql_check[];
extern const char dlock_sql_refresh_key[];
extern const char dlock_sql_adopt[];
extern const char dlock_sql_refresh[];
extern const char dlock_sql_force_release[];
extern const char dlock_sql_handover[];
extern const char dlock_sql_limit[];
extern const char dlock_sql_release_all[];
extern const char dlock_sql_renew[];
extern const char dlock_sql_abandoned[];
extern const char dlock_sql_enqueue[];
extern const char dlock_sql_claim[];
extern const char dlock_sql_dequeue[];
extern const char dlock_sql_tickets[];
extern const char dlock_sql_info[];
extern const char dlock_sql_list[];
extern const char dlock_sql_list_hot[];
extern const char dlock_sql_waiters[];
extern const char dlock_sql_no_waiters[];
extern const char dlock_sql_watch[];
extern const char dlock_sql_health[];
extern const char dlock_sql_stats[];
extern const char dlock_sql_wait_times[];
extern const char dlock_sql_contended[];

#endif							/* DLOCK_SQL_H */
