/*-------------------------------------------------------------------------
 *
 * load_work.h
 *	  What the event loop of the load generator and the work of its clients have
 *	  in common; the peers need load.h only.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_BENCH_LOAD_WORK_H
#define DLOCK_BENCH_LOAD_WORK_H

#include "load.h"

#define SECOND		UINT64_C(1000000000)

/* How far the run is. */
typedef struct Course
{
	uint64_t	start_at;		/* counting begins, when warm */
	uint64_t	stop_at;
	bool		stopping;		/* nothing new is started */
	int			busy;			/* clients that are not idle */
	uint64_t	answers;
} Course;

/* load_loop.c */
extern Course load_course;

/* load_work.c */
extern void load_prepare(Client *client, bool is_end);
extern void load_begin(Client *client);
extern void load_woken(Client *client);

/* load_keys.c */
extern void load_keys_open(void);
extern void load_keys_close(void);
extern uint64_t load_random(Client *client);
extern void load_new_owner(Client *client);
extern void load_choose_keys(Client *client);
extern void load_choose_subset(Client *client);
extern void load_note_keys(const Client *client, bool is_grant);

#endif							/* DLOCK_BENCH_LOAD_WORK_H */
