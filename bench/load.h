/*-------------------------------------------------------------------------
 *
 * load.h
 *	  What the load generator and its peers have in common.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_BENCH_LOAD_H
#define DLOCK_BENCH_LOAD_H

#include <stdbool.h>
#include <stdint.h>

typedef enum Op
{
	OP_ACQUIRE,					/* try: granted or busy, at once */
	OP_WAIT,					/* acquire in the peer's own queue */
	OP_RELEASE,					/* if still the owner */
	OP_REFRESH,					/* if still the owner */
	OP_COUNT
} Op;

/*
 * One connection.  It has one operation under way at a time, on nkeys keys at
 * once; how it handles several keys is up to the peer (a pipeline, or one
 * statement with --batch).
 */
typedef struct Client
{
	int			id;
	void	   *state;			/* the peer's */
	int			fd;
	uint32_t	events;			/* what epoll has been told */

	int			nkeys;
	uint32_t   *keys;
	int64_t    *tokens;			/* if the peer returns tokens */
	char		owner[40];		/* unique to one acquire */

	/* --apart: who releases for this client, and for whom this one does */
	struct Client *releaser;
	struct Client *acts_for;

	/* the rest is not for the peers */
	int64_t    *leases;			/* tokens of what a refresh renews */
	int			nleases;
	int			lease;			/* the next one */
	int			phase;
	uint64_t	asked_at;
	uint64_t	granted_at;
	uint64_t	wake_at;		/* 0 = no timer */
	uint64_t	cycles;
	uint64_t	random;
} Client;

typedef struct Peer
{
	const char *name;
	bool		waits;			/* has OP_WAIT */
	bool		refreshes;		/* has OP_REFRESH */
	bool		releases;		/* otherwise there is only an acquire */
	bool		shares;			/* several clients hold a key at once */

	/* may block; the clock has not started */
	void		(*open) (Client *client);

	/* must not block; answers through load_done(), perhaps at once */
	void		(*start) (Client *client, Op op);
	void		(*ready) (Client *client, uint32_t events);

	/*
	 * called at least once per second, for peers that send heartbeats; or
	 * NULL
	 */
	void		(*tick) (Client *client);

	/* how many locks are held; may block */
	long		(*left) (Client *client);
	void		(*close) (Client *client);

	/* the process behind the connection, 0 if there is none */
	int			(*pid) (Client *client);
} Peer;

/* load_pg.c, load_redis.c, load_zk.c: NULL if there is no such peer */
extern const Peer *load_pg_peer(const char *name);
extern const Peer *load_redis_peer(const char *name);
extern const Peer *load_zk_peer(const char *name);

typedef enum Work
{
	WORK_CYCLE, WORK_TRY, WORK_WAIT, WORK_RETRY, WORK_REFRESH, WORK_SUBSETS,
	WORK_HANDOVER
} Work;

typedef struct Options
{
	const Peer *peer;
	const char *target;
	Work		work;
	int			nclients;
	uint32_t	nkeys;
	int			depth;			/* keys at a time */
	int			room;			/* the most keys of any operation */
	bool		batch;
	bool		apart;			/* releases have connections of their own */
	int			slots;			/* how many may hold a semaphore */
	int			beside;			/* how many others hold the keys meanwhile */
	double		seconds;
	double		warmup;
	double		every;			/* 0 = no series */
	double		delay;
	double		hold;
	uint64_t	limit;			/* cycles per client, 0 = by the clock */
	bool		check_left;
	unsigned	seed;
} Options;

/* What was counted; the samples are tenths of microseconds. */
typedef struct Tally
{
	uint64_t	errors;
	uint64_t	busy;
	uint64_t	grants;
	uint64_t	cycles;
	uint64_t	acquired;		/* acquires that were granted, and */
	uint64_t	acquire_time;	/* what they took */
	uint32_t   *samples;
	uint64_t	nsamples;
	long		left;
	double		cpu;
} Tally;

/* load.c */
extern Options load;
extern Tally load_tally;
extern const char *const load_works[];

extern uint64_t load_now(void);
extern void load_complain(const char *what, const char *why);
extern void load_die(const char *what, const char *why)
			__attribute__((noreturn));
extern void *load_alloc(uint64_t size);

/* load_loop.c */
extern Client *load_clients;

extern void load_open(void);
extern void load_run(void);
extern void load_close(void);
extern void load_watch(Client *client, int fd, uint32_t events);
extern int	load_releaser_pid(void);

/* load_work.c */
extern void load_done(Client *client, int succeeded);

#endif							/* DLOCK_BENCH_LOAD_H */
