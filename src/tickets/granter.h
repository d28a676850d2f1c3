/*-------------------------------------------------------------------------
 *
 * granter.h
 *	  The worker that grants the tickets of a database.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_TICKETS_GRANTER_H
#define DLOCK_TICKETS_GRANTER_H

extern int64 dlock_granter_wanted_at(int db);
extern bool dlock_granter_start(int db, int64 now);

extern PGDLLEXPORT void dlock_granter_main(Datum arg);

#endif							/* DLOCK_TICKETS_GRANTER_H */
