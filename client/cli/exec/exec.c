/*
 * exec.c
 *	  A command that runs while we hold a lock, or several, and no longer.
 *
 * The library has a local deadline, at nine tenths of the TTL, and moves it with
 * each renewal.  The command gets SIGTERM when the deadline is --kill-after away,
 * and SIGKILL at the deadline, so that none of its processes is left when the
 * server grants the lock to another client.  The same happens at once when the
 * server reports that the lock is lost.
 *
 * The guard (guard.c) knows the same two times, and acts if we cannot.
 */
#include "exec/child.h"
#include "exec/hold.h"
#include "signals.h"
#include "times.h"
#include "api/inspect.h"
#include "base/util.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef enum
{
	END_NONE,					/* the command ended by itself */
	END_DANGER,					/* the lock could not be renewed */
	END_LOST,
	END_YIELDED,				/* we were asked to yield */
	END_HELD_OUT				/* --max-hold is over */
} EndReason;

typedef struct
{
	const Options *options;
	Hold	   *hold;
	Child		child;
	int64_t		grace;			/* between SIGTERM and SIGKILL */
	int64_t		deadline;		/* the last one that is known */
	EndReason	reason;			/* why we end the command, if we do */
	bool		asked;			/* the command was asked to end */
	int64_t		killed_at;		/* 0: it was not */
	int64_t		kill_at;		/* once asked */
} Run;

/*
 * Set by the renewal thread: when our time to yield is up, or 0, and which lock
 * we were asked for.
 */
static atomic_llong yield_by = 0;
static _Atomic(const dlock_lock *) yield_lock = NULL;

/* Likewise: the lock that has been held for --max-hold, or NULL. */
static _Atomic(const dlock_lock *) held_out_lock = NULL;

/* A signal asked us to end: do not campaign again. */
static bool told_to_end = false;

static void
on_event(const dlock_event *event, void *arg)
{
	(void) arg;
	if (event->type == DLOCK_EVENT_PREEMPTED && event->reason == DLOCK_REASON_MAX_HOLD)
		atomic_store(&held_out_lock, event->lock);
	else if (event->type == DLOCK_EVENT_PREEMPTED)
	{
		atomic_store(&yield_lock, event->lock);
		atomic_store(&yield_by, dlock_now() + event->left_ms);
	}
	news_post(NEWS_LOCK);
}

static void
ask_to_end(Run *run, EndReason reason, int signo, int64_t kill_at)
{
	run->reason = reason;
	run->asked = true;
	run->kill_at = kill_at;
	if (signo != 0)
	{
		child_signal(&run->child, signo);
		/* a stopped process could not act upon it */
		child_signal(&run->child, SIGCONT);
	}
}

/* The lock that expires first. */
static const char *
next_to_expire(const Hold *hold)
{
	int			first = 0;
	int			i;

	for (i = 1; i < hold->count; i++)
		if (dlock_left_ms(hold->locks[i]) < dlock_left_ms(hold->locks[first]))
			first = i;
	return hold->keys[first];
}

/* Are the locks ours, and for how long?  One that is lost ends the command. */
static void
look_at_locks(Run *run)
{
	int64_t		now = dlock_now();
	int64_t		left = hold_left(run->hold);
	const dlock_lock *lost = hold_lost(run->hold);
	bool		ours = lost == NULL;
	int64_t		yield = atomic_load(&yield_by);
	const dlock_lock *held_out = atomic_load(&held_out_lock);

	if (ours && left > 0)
		run->deadline = now + left;

	if (!ours && run->reason != END_LOST)
	{
		dlock_reason reason = dlock_lost_reason(lost);
		const char *taken = dlock_lost_detail(lost);

		error("lock \"%s\" is lost: %s%s%s", dlock_key(lost),
			  reason == DLOCK_REASON_DEADLINE ?
			  "it could not be renewed in time" :
			  reason == DLOCK_REASON_PREEMPTED ?
			  "a higher priority has taken it" :
			  reason == DLOCK_REASON_FORCED ? "it was taken away" :
			  "it has expired or was released", taken[0] != '\0' ? " " : "", taken);
		ask_to_end(run, END_LOST, SIGTERM,
				   dlock_min(now + run->grace, run->deadline));
	}
	else if (ours && !run->asked && held_out != NULL)
	{
		error("lock \"%s\" has been held for --max-hold: ending the command", dlock_key(held_out));
		ask_to_end(run, END_HELD_OUT, SIGTERM, dlock_min(now + run->grace, run->deadline));
	}
	else if (ours && !run->asked && now >= run->deadline - run->grace)
	{
		error("lock \"%s\" cannot be renewed: ending the command",
			  next_to_expire(run->hold));
		ask_to_end(run, END_DANGER, SIGTERM, run->deadline);
	}
	else if (ours && !run->asked && yield != 0 && run->options->on_preempt != 0)
	{
		int64_t		margin = (yield - now) / 5;

		notice("asked to yield lock \"%s\": ending the command",
			   dlock_key(atomic_load(&yield_lock)));
		ask_to_end(run, END_YIELDED, run->options->on_preempt,
				   dlock_min(yield - dlock_min(margin, YIELD_MARGIN_MS),
							 run->deadline));
	}
}

static void
look_at_command(Run *run)
{
	if (!run->child.running && !run->asked && child_group_alive(&run->child))
	{
		warning("the command has left processes behind: ending them");
		ask_to_end(run, END_NONE, SIGTERM, dlock_now() + run->grace);
	}
	if (run->asked && run->killed_at == 0 && dlock_now() >= run->kill_at)
	{
		child_signal(&run->child, SIGKILL);
		run->killed_at = dlock_now();
	}
}

/* Wait until no process of the command is left. */
static void
wait_for_command(Run *run)
{
	int64_t		tick = hold_ttl(run->hold) / 20;

	if (tick < MIN_TICK_MS)
		tick = MIN_TICK_MS;
	for (;;)
	{
		int64_t		until;
		int			news;

		child_reap(&run->child);
		look_at_locks(run);
		look_at_command(run);
		if (!child_group_alive(&run->child))
			return;
		/* a zombie that its parent does not reap stays in the group forever */
		if (!run->child.running && run->killed_at != 0 &&
			dlock_now() > run->killed_at + ZOMBIE_MS)
			return;

		guard_watch(run->child.group,
					run->asked ? run->kill_at : run->deadline - run->grace,
					run->asked ? dlock_min(run->kill_at, run->deadline) :
					run->deadline);

		until = dlock_now() + tick;
		if (run->asked && run->killed_at == 0)
			until = dlock_min(until, run->kill_at);
		else if (!run->asked)
			until = dlock_min(until, run->deadline - run->grace);
		/* there is no notification of the end of a group */
		if (!run->child.running)
			until = dlock_min(until, dlock_now() + GROUP_TICK_MS);
		news = news_wait(until);
		if (news != NEWS_NONE && news != NEWS_LOCK && news != SIGCHLD &&
			news != SIGCONT)
		{
			if (is_ending_signal(news))
			{
				told_to_end = true;
				guard_told();
			}
			child_signal(&run->child, news);
		}
	}
}

/*
 * The command has ended: release the locks.  Returns false if one of them was not
 * ours until then.
 */
static bool
give_back(Run *run)
{
	const dlock_lock *lost = hold_lost(run->hold);
	int64_t		timeout = run->options->timeout > 0 ? run->options->timeout :
		DLOCK_DEFAULT_TIMEOUT_MS;
	dlock_error err = {0};
	dlock_status status = hold_release(run->hold,
									   dlock_min(hold_left(run->hold) + RELEASE_MARGIN_MS, timeout),
									   &err);
	bool		gone = status == DLOCK_NOT_HELD || status == DLOCK_HELD_BY_OTHER ||
		status == DLOCK_LOST;

	if (run->reason == END_NONE && lost != NULL)
		error("lock \"%s\" was lost while the command ran", dlock_key(lost));
	else if (run->reason == END_NONE && gone)
		error("lost while the command ran: %s", err.message);
	else if (lost == NULL && status != DLOCK_OK && !gone)
		warning("could not release lock \"%s\", it ends by its TTL: %s",
				run->hold->keys[0], err.message);
	return lost == NULL && !gone;
}

/*
 * A router and the portable edition have no fence for a whole connection, and a server
 * takes any setting with a dot in its name.
 */
static int
check_fence(dlock_handle *handle)
{
	DlockReply *reply = NULL;
	dlock_error err = {0};
	dlock_status status = dlock_read(handle, "SELECT 'connection_fence'::pg_catalog.text OPERATOR(pg_catalog.=)"
									 " ANY (f.features) FROM @.dlock_features() f", -1, &reply, &err);
	bool		has_it = status == DLOCK_OK && dlock_reply_bool(reply, 0, 0);

	dlock_reply_free(reply);
	if (status != DLOCK_OK)
		return report_status(status, &err, NULL);
	if (has_it)
		return 0;
	error("this server does not support --fence");
	hint("Call dlock_fence() with DLOCK_KEY and DLOCK_VERSION in the transactions that write.");
	return EXIT_NOT_READY;
}

/*
 * Run the command under locks that we hold, and release them.  Returns the exit
 * code, which is the command's own if *reason is END_NONE.
 */
static int
run_under(Hold *hold, dlock_handle *handle, const Options *options, EndReason *reason)
{
	Run			run = {.options = options,.hold = hold};
	char	  **variables;
	int			code = options->fence ? check_fence(handle) : 0;

	if (code != 0)
	{
		(void) give_back(&run);
		*reason = END_NONE;
		return code;
	}
	variables = make_variables(hold, options->fence);
	run.grace = dlock_min(options->kill_after >= 0 ? options->kill_after :
						  DEFAULT_KILL_AFTER_MS, hold_ttl(hold) / 4);
	run.deadline = dlock_now() + hold_left(hold);

	/* the child enters its group there before it executes the command */
	guard_watch(0, run.deadline - run.grace, run.deadline);
	code = child_start(&run.child, options->command, variables);
	if (code == 0)
	{
		wait_for_command(&run);
		code = child_exit_code(&run.child);
		child_end(&run.child);
	}
	free_variables(variables);
	if (!give_back(&run) && run.reason == END_NONE)
		run.reason = END_LOST;
	*reason = run.reason;
	return run.reason != END_NONE ? EXIT_LOST : code;
}

static void
prepare(const Options *options, dlock_options *lock_options)
{
	fill_lock_options(options, lock_options);
	lock_options->renew = 1;
	lock_options->callback = on_event;

	/* time to end the command before another client gets the lock */
	if (options->cleanup < 0 && options->also_count == 0)
		lock_options->cleanup_ms = DEFAULT_CLEANUP_MS;
	atomic_store(&yield_by, 0);
	atomic_store(&held_out_lock, NULL);
}

static void
begin(void)
{
	if (!guard_start())
	{
		error("could not start a process");
		exit(EXIT_INTERNAL);
	}
	news_start();
}

/*
 * Take a permit, and become the command.  There is no lock to watch over.  A signal ends us
 * while we wait, and the server notices that we are gone.
 */
static int
run_at_rate(const Options *options)
{
	dlock_handle *handle = connect_server(options);
	dlock_error err = {0};
	int64_t		again = 0;
	dlock_status status = dlock_limit(handle, options->key, (int32_t) options->rate,
									  options->rate_per, options->wait,
									  (int32_t) options->priority, -1, &again, &err);

	if (status == DLOCK_BUSY)
	{
		Text		when = {0};

		text_duration(&when, again);
		error("the rate of \"%s\" is used up", options->key);
		if (!is_quiet)
			detail("A permit is to be had in %s.", when.data);
		if (!is_quiet && options->wait == 0)
			hint("Use --wait to queue.");
		text_free(&when);
	}
	if (status != DLOCK_OK && status != DLOCK_BUSY)
		return give_up(handle, status, &err, options->key);
	dlock_close(handle);
	return status == DLOCK_OK ? child_become(options->command) : exit_code(status);
}

int
run_exec(const Options *options)
{
	dlock_handle *handle;
	dlock_options lock_options;
	Hold		hold;
	dlock_error err = {0};
	dlock_status status;
	EndReason	reason;
	int			signo;
	int			code;

	if (options->rate > 0)
		return run_at_rate(options);
	begin();
	handle = connect_server(options);
	prepare(options, &lock_options);
	hold_init(&hold, options);
	status = hold_acquire(&hold, handle, options, &lock_options, HOLD_NESTED, &err,
						  &signo);
	if (signo != 0)
		die_by_signal(signo);
	if (status != DLOCK_OK)
		code = report_denied(handle, status, &err, &hold, options);
	else
		code = run_under(&hold, handle, options, &reason);
	hold_free(&hold);
	dlock_close(handle);
	guard_stop();
	return code;
}

/* A candidate retries: servers come back, and holders yield eventually. */
static bool
is_passing(dlock_status status, const Options *options)
{
	return status == DLOCK_UNREACHABLE || status == DLOCK_TIMEOUT ||
		(status == DLOCK_REFUSED && options->wait < 0);
}

static void
wait_and_retry(const dlock_error *err, bool *told)
{
	int64_t		until = dlock_now() + RETRY_MS;

	if (!*told)
		warning("%s; trying again", err->message);
	*told = true;
	while (dlock_now() < until)
	{
		int			news = news_wait(until);

		if (is_ending_signal(news))
			die_by_signal(news);
	}
}

int
run_elect(const Options *options)
{
	dlock_handle *handle;
	bool		told = false;
	int			code;

	if (options->observe)
		return run_watch(options);
	begin();
	handle = connect_server(options);
	for (;;)
	{
		dlock_options lock_options;
		Hold		hold;
		dlock_error err = {0};
		dlock_status status;
		EndReason	reason = END_NONE;
		int			signo;

		prepare(options, &lock_options);
		hold_init(&hold, options);
		status = hold_acquire(&hold, handle, options, &lock_options,
							  options->wait < 0 ? HOLD_CAMPAIGN : HOLD_ACQUIRE, &err, &signo);
		if (signo != 0)
			die_by_signal(signo);
		if (is_passing(status, options))
		{
			hold_free(&hold);
			wait_and_retry(&err, &told);
			continue;
		}
		if (status != DLOCK_OK)
		{
			code = report_denied(handle, status, &err, &hold, options);
			hold_free(&hold);
			break;
		}
		told = false;
		notice("elected for \"%s\", term %lld", options->key,
			   (long long) dlock_version(hold.locks[0]));
		code = run_under(&hold, handle, options, &reason);
		hold_free(&hold);
		if (reason == END_NONE || options->once || told_to_end)
			break;
	}
	dlock_close(handle);
	guard_stop();
	return code;
}
