/*-------------------------------------------------------------------------
 *
 * guc.h
 *	  dlock's settings.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_GUC_H
#define DLOCK_GUC_H

extern int	dlock_default_ttl;	/* ms */
extern int	dlock_max_ttl;		/* ms */
extern int	dlock_reap_interval;	/* ms, 0 = never */
extern int	dlock_max_tickets;

/* how long a free row is kept, so that the next grant of its key can use it */
#define DLOCK_LINGER_US ((int64) dlock_reap_interval * 1000 * 60)

/* how long a lapsed grant is kept */
#define DLOCK_LAPSE_US ((int64) dlock_max_ttl * 1000)

extern bool dlock_require_sync;
extern bool dlock_durable_grants;
extern bool dlock_durable_releases;

/* which ends of grants are logged */
typedef enum DlockLogEnds
{
	DLOCK_LOG_NO_ENDS,
	DLOCK_LOG_LOST,
	DLOCK_LOG_ALL_ENDS
} DlockLogEnds;

extern int	dlock_log_ends;
extern bool dlock_allow_direct_writes;
extern bool dlock_only_served;
extern char *dlock_token;		/* digits, or empty */

/* dlock.fence, whose own name is that of a function: version:key, or empty */
extern char *dlock_connection_fence;
extern char *dlock_require_fence;	/* a prefix of keys, or empty */

extern void dlock_guc_init(void);

#endif							/* DLOCK_GUC_H */
