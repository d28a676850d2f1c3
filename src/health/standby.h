/*-------------------------------------------------------------------------
 *
 * standby.h
 *	  The standbys of this server, and which of them confirm commits.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_HEALTH_STANDBY_H
#define DLOCK_HEALTH_STANDBY_H

#include "access/xlogdefs.h"

/* What commits wait for, as of now. */
typedef struct DlockSync
{
	bool		defined;		/* synchronous_standby_names is not empty */
	bool		in_effect;		/* and commits wait for these */
	bool		quorum;			/* ANY, rather than FIRST */
	int			required;		/* how many must confirm */
	int			confirming;		/* how many can */
	int			strangers;		/* how many have WAL that is not ours */
} DlockSync;

/* A standby that is connected. */
typedef struct DlockStandby
{
	const char *name;			/* application_name; NULL if it has just gone */
	const char *state;			/* "streaming" and so on */
	const char *role;			/* "sync", "quorum", "potential", "async" */
	bool		streaming;
	bool		stranger;		/* it has WAL that we have not written */
	XLogRecPtr	flushed;		/* what it has confirmed, or invalid */
} DlockStandby;

extern Size dlock_standby_shmem_size(void);
extern void dlock_standby_shmem_init(void);
extern bool dlock_standby_defined(void);
extern bool dlock_standby_expected(void);
extern void dlock_standby_look(DlockSync *sync);
extern void dlock_standby_require(void);
extern bool dlock_standby_confirms(XLogRecPtr lsn, int timeout_ms);
extern DlockStandby *dlock_standby_list(int *count);

#endif							/* DLOCK_HEALTH_STANDBY_H */
