/*-------------------------------------------------------------------------
 *
 * conninfo.h
 *	  What to connect to.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_CONNINFO_H
#define DLOCK_CONNINFO_H

#include <stdbool.h>
#include <stdint.h>

#include "dlock.h"

typedef struct DlockHost
{
	char	   *host;			/* NULL: libpq's default */
	char	   *hostaddr;
	char	   *port;
} DlockHost;

/* Constant, except for preferred, unflushed and by_text. */
typedef struct DlockConninfo
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
} DlockConninfo;

extern dlock_status dlock_conninfo_make(const char *text,
										const dlock_open_options *options,
										DlockConninfo **conninfo, dlock_error *err);
extern void dlock_conninfo_free(DlockConninfo *conninfo);
extern int64_t dlock_conninfo_round_ms(const DlockConninfo *conninfo);

#endif							/* DLOCK_CONNINFO_H */
