/*-------------------------------------------------------------------------
 *
 * target.h
 *	  What to connect to.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_TARGET_H
#define DLOCK_TARGET_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "dlock.h"

typedef struct DlockHost
{
	char	   *host;			/* NULL: libpq's default */
	char	   *hostaddr;
	char	   *port;
} DlockHost;

/* Constant, except for preferred, unflushed, by_text and conns. */
typedef struct DlockTarget
{
	char	  **keywords;		/* without those of DlockHost */
	char	  **values;
	int			nparams;
	DlockHost  *hosts;
	int			nhosts;
	int64_t		connect_ms;		/* for one address */
	int64_t		only_ms;		/* for the only one that there is */
	int			preferred;		/* the host that accepted us last; atomic */
	bool		unflushed;		/* no grant waits for a flush; atomic */
	bool		by_text;		/* its servers forget statements that were
								 * prepared; atomic */
	pthread_mutex_t mutex;
	struct DlockConn *conns;	/* all connections; protected by mutex */
} DlockTarget;

extern dlock_status dlock_target_make(const char *conninfo,
									  const dlock_open_options *options,
									  DlockTarget **target, dlock_error *err);
extern void dlock_target_free(DlockTarget *target);
extern int64_t dlock_target_round_ms(const DlockTarget *target);

#endif							/* DLOCK_TARGET_H */
