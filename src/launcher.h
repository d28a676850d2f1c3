/*-------------------------------------------------------------------------
 *
 * launcher.h
 *	  The permanent worker, which starts reapers.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_LAUNCHER_H
#define DLOCK_LAUNCHER_H

extern void dlock_launcher_init(void);

extern PGDLLEXPORT void dlock_launcher_main(Datum arg);

#endif							/* DLOCK_LAUNCHER_H */
