/*-------------------------------------------------------------------------
 *
 * reaper.h
 *	  A worker that visits one database.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_REAPER_H
#define DLOCK_REAPER_H

extern PGDLLEXPORT void dlock_reaper_main(Datum arg);

#endif							/* DLOCK_REAPER_H */
