/*-------------------------------------------------------------------------
 *
 * granter.h
 *	  The worker that grants the tickets of a database.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_GRANTER_H
#define DLOCK_GRANTER_H

extern bool dlock_granter_start(int db);

extern PGDLLEXPORT void dlock_granter_main(Datum arg);

#endif							/* DLOCK_GRANTER_H */
