/*-------------------------------------------------------------------------
 *
 * desk.c
 *	  Which process grants the tickets of a database.
 *
 * A granter is there while there are tickets.  The backend that takes one starts
 * a granter if there is none, so that it can report that no more worker processes
 * are to be had.  If a granter ends while there are tickets, the launcher starts
 * another one.
 *
 * A granter that has been called is expected to open its desk.  If it does not,
 * because it could not be started after all, it is called again.  A second one
 * that comes finds the desk open and leaves.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/shmem.h"

#include "clock.h"
#include "database.h"
#include "desk.h"
#include "lwlocks.h"

#define EXPECTED_US		INT64CONST(5000000)

/* All but "ready" is protected by the lock of the tickets. */
typedef struct Desk
{
	DlockReady	ready;
	int			ntickets;		/* that are not granted yet */
	int			pid;			/* the granter's; 0: none */
	int64		called_at;		/* lease time; 0: it is not expected */
} Desk;

static Desk *desks = NULL;		/* by the number of the database */

Size
dlock_desk_shmem_size(void)
{
	return mul_size(DLOCK_MAX_DATABASES, sizeof(Desk));
}

void
dlock_desk_shmem_init(void)
{
	bool		found;

	desks = ShmemInitStruct("dlock desks", dlock_desk_shmem_size(), &found);
	if (found)
		return;

	memset(desks, 0, dlock_desk_shmem_size());
	for (int i = 0; i < DLOCK_MAX_DATABASES; i++)
		dlock_ready_init(&desks[i].ready);
}

DlockReady *
dlock_desk_ready(int db)
{
	return &desks[db].ready;
}

void
dlock_desk_come(int db)
{
	desks[db].ntickets++;
}

void
dlock_desk_go(int db)
{
	Assert(desks[db].ntickets > 0);
	desks[db].ntickets--;
}

/* Should the caller start a granter?  Then it is expected from now on. */
bool
dlock_desk_call(int db, int64 now)
{
	Desk	   *desk = &desks[db];
	bool		wanted;

	LWLockAcquire(dlock_lwlock_tickets(), LW_EXCLUSIVE);
	wanted = desk->ntickets > 0 && desk->pid == 0 &&
		(desk->called_at == 0 || now >= desk->called_at + EXPECTED_US);
	if (wanted)
		desk->called_at = now;
	LWLockRelease(dlock_lwlock_tickets());
	return wanted;
}

void
dlock_desk_call_failed(int db)
{
	LWLockAcquire(dlock_lwlock_tickets(), LW_EXCLUSIVE);
	desks[db].called_at = 0;
	LWLockRelease(dlock_lwlock_tickets());
}

/* When the launcher has to call a granter: lease time, or DLOCK_NEVER. */
int64
dlock_desk_call_at(int db)
{
	Desk	   *desk = &desks[db];
	int64		when = DLOCK_NEVER;

	LWLockAcquire(dlock_lwlock_tickets(), LW_SHARED);
	if (desk->ntickets > 0 && desk->pid == 0)
		when = desk->called_at == 0 ? 0 : desk->called_at + EXPECTED_US;
	LWLockRelease(dlock_lwlock_tickets());
	return when;
}

/* A granter begins.  False: there is one already. */
bool
dlock_desk_open(int db)
{
	Desk	   *desk = &desks[db];
	bool		opened;

	LWLockAcquire(dlock_lwlock_tickets(), LW_EXCLUSIVE);
	opened = desk->pid == 0;
	if (opened)
	{
		desk->pid = MyProcPid;
		desk->called_at = 0;
		dlock_ready_set_latch(&desk->ready, MyLatch);
	}
	LWLockRelease(dlock_lwlock_tickets());
	return opened;
}

static void
close_desk(Desk *desk)
{
	desk->pid = 0;
	dlock_ready_set_latch(&desk->ready, NULL);
}

/* A ticket that comes after this finds no granter, and calls one. */
bool
dlock_desk_close_if_idle(int db)
{
	bool		closed;

	LWLockAcquire(dlock_lwlock_tickets(), LW_EXCLUSIVE);
	closed = desks[db].ntickets == 0;
	if (closed)
		close_desk(&desks[db]);
	LWLockRelease(dlock_lwlock_tickets());
	return closed;
}

/* The granter exits.  Are there tickets left? */
bool
dlock_desk_close(int db)
{
	bool		left = false;

	LWLockAcquire(dlock_lwlock_tickets(), LW_EXCLUSIVE);
	if (desks[db].pid == MyProcPid)
	{
		close_desk(&desks[db]);
		left = desks[db].ntickets > 0;
	}
	LWLockRelease(dlock_lwlock_tickets());
	return left;
}
