/*-------------------------------------------------------------------------
 *
 * reaper.h
 *	  The background workers that remove what has expired.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_REAPER_H
#define DLOCK_REAPER_H

#include "postgres.h"

extern void dlock_launcher_init(void);

extern PGDLLEXPORT void dlock_launcher_main(Datum arg);
extern PGDLLEXPORT void dlock_reaper_main(Datum arg);

#endif							/* DLOCK_REAPER_H */
