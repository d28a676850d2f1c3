/*-------------------------------------------------------------------------
 *
 * workers.h
 *	  The permanent worker, which starts reapers, and the reaper, which visits one
 *	  database.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_WORKERS_WORKERS_H
#define DLOCK_WORKERS_WORKERS_H

extern void dlock_launcher_init(void);

extern PGDLLEXPORT void dlock_launcher_main(Datum arg);
extern PGDLLEXPORT void dlock_reaper_main(Datum arg);

#endif							/* DLOCK_WORKERS_WORKERS_H */
