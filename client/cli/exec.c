/*
 * exec.c
 *	  A command that runs while we hold a lock, and no longer.
 *
 * The library has a local deadline, at nine tenths of the TTL, and moves it with
 * each renewal.  The command gets SIGTERM when the deadline is --kill-after away,
 * and SIGKILL at the deadline, so that none of its processes is left when the
 * server grants the lock to another client.  The same happens at once when the
 * server reports that the lock is lost.
 *
 * The guard (guard.c) knows the same two times, and acts if we cannot.
 */
#include "cli.h"
#include "child.h"
#include "times.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef enum
{
	END_NONE,					/* the command ended by itself */
	END_DANGER,					/* the lock could not be renewed */
	END_LOST,
	END_YIELDED					/* we were asked to yield */
} EndReason;

typedef struct
{
	const Options *options;
	dlock_lock *lock;
	Child		child;
	int64_t		grace;			/* between SIGTERM and SIGKILL */
	int64_t		deadline;		/* the last one that is known */
	EndReason	reason;			/* why we end the command, if we do */
	bool		asked;			/* the command was asked to end */
	int64_t		killed_at;		/* 0: it was not */
	int64_t		kill_at;		/* once asked */
} Run;

/* Set by the renewal thread: when our time to yield is up, or 0. */
static atomic_llong yield_by = 0;

/* A signal asked us to end: do not campaign again. */
static bool told_to_end = false;

static void
on_event(const dlock_event *event, void *arg)
{
	(void) arg;
	if (event->type == DLOCK_EVENT_PREEMPTED)
		atomic_store(&yield_by, dlock_now() + event->left_ms);
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

/* Is the lock ours, and for how long? */
static void
look_at_lock(Run *run)
{
	int64_t		now = dlock_now();
	int64_t		left = dlock_left_ms(run->lock);
	bool		ours = dlock_is_owner(run->lock);
	int64_t		yield = atomic_load(&yield_by);

	if (ours && left > 0)
		run->deadline = now + left;

	if (!ours && run->reason != END_LOST)
	{
		dlock_reason reason = dlock_lost_reason(run->lock);

		error("lock \"%s\" is lost: %s", run->options->key,
			  reason == DLOCK_REASON_DEADLINE ?
			  "it could not be renewed in time" :
			  reason == DLOCK_REASON_PREEMPTED ?
			  "a higher priority has taken it" :
			  reason == DLOCK_REASON_FORCED ? "it was taken away" :
			  "it has expired or was released");
		ask_to_end(run, END_LOST, SIGTERM,
				   dlock_min(now + run->grace, run->deadline));
	}
	else if (ours && !run->asked && now >= run->deadline - run->grace)
	{
		error("lock \"%s\" cannot be renewed: ending the command",
			  run->options->key);
		ask_to_end(run, END_DANGER, SIGTERM, run->deadline);
	}
	else if (ours && !run->asked && yield != 0 && run->options->on_preempt != 0)
	{
		int64_t		margin = (yield - now) / 5;

		notice("asked to yield lock \"%s\": ending the command",
			   run->options->key);
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
	int64_t		tick = dlock_ttl_ms(run->lock) / 20;

	if (tick < MIN_TICK_MS)
		tick = MIN_TICK_MS;
	for (;;)
	{
		int64_t		until;
		int			news;

		child_reap(&run->child);
		look_at_lock(run);
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
			told_to_end |= is_ending_signal(news);
			child_signal(&run->child, news);
		}
	}
}

static void
environment(const dlock_lock *lock, const char *key, char **variables)
{
	Text		version = {0};
	Text		name = {0};

	text_format(&version, "DLOCK_VERSION=%lld", (long long) dlock_version(lock));
	text_format(&name, "DLOCK_KEY=%s", key);
	variables[0] = text_take(&version);
	variables[1] = text_take(&name);
	variables[2] = NULL;
}

/*
 * Run the command under a lock that we hold, and release the lock.  Returns the
 * exit code, which is the command's own if *reason is END_NONE.
 */
static int
run_under(dlock_lock *lock, const Options *options, EndReason *reason)
{
	Run			run = {.options = options,.lock = lock};
	char	   *variables[3];
	int			code;
	dlock_error err = {0};
	dlock_status status;
	bool		ours;

	run.grace = dlock_min(options->kill_after >= 0 ? options->kill_after :
						  DEFAULT_KILL_AFTER_MS, dlock_ttl_ms(lock) / 4);
	run.deadline = dlock_now() + dlock_left_ms(lock);
	environment(lock, options->key, variables);

	/* the child enters its group there before it executes the command */
	guard_watch(0, run.deadline - run.grace, run.deadline);
	code = child_start(&run.child, options->command, variables);
	if (code == 0)
	{
		wait_for_command(&run);
		code = child_exit_code(&run.child);
		child_end(&run.child);
	}
	free(variables[0]);
	free(variables[1]);

	/* was the lock ours until the end? */
	ours = dlock_is_owner(lock);
	status = dlock_release(lock, dlock_min(dlock_left_ms(lock) + RELEASE_MARGIN_MS,
										   options->timeout > 0 ? options->timeout : DLOCK_DEFAULT_TIMEOUT_MS), &err);
	if (run.reason == END_NONE &&
		(!ours || status == DLOCK_NOT_HELD || status == DLOCK_HELD_BY_OTHER ||
		 status == DLOCK_LOST))
	{
		error("lock \"%s\" was lost while the command ran", options->key);
		run.reason = END_LOST;
	}
	else if (ours && status != DLOCK_OK && exit_code(status) != EXIT_LOST)
	{
		warning("could not release lock \"%s\", it ends by its TTL: %s",
				options->key, err.message);
	}
	dlock_free(lock);
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
	if (options->cleanup < 0)
		lock_options->cleanup_ms = DEFAULT_CLEANUP_MS;
	atomic_store(&yield_by, 0);
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

int
run_exec(const Options *options)
{
	dlock_handle *handle;
	dlock_options lock_options;
	dlock_lock *lock;
	dlock_error err = {0};
	dlock_status status;
	EndReason	reason;
	int			signo;
	int			code;

	begin();
	handle = connect_server(options);
	prepare(options, &lock_options);
	status = acquire_or_signal(handle, options, &lock_options, false, &lock,
							   &err, &signo);
	if (signo != 0)
		die_by_signal(signo);
	if (status != DLOCK_OK)
	{
		code = report_status(status, &err, options->key);
		report_holder(handle, status, options->key);
	}
	else
		code = run_under(lock, options, &reason);
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
		dlock_lock *lock;
		dlock_error err = {0};
		dlock_status status;
		EndReason	reason = END_NONE;
		int			signo;

		prepare(options, &lock_options);
		status = acquire_or_signal(handle, options, &lock_options,
								   options->wait < 0, &lock, &err, &signo);
		if (signo != 0)
			die_by_signal(signo);
		if (is_passing(status, options))
		{
			wait_and_retry(&err, &told);
			continue;
		}
		if (status != DLOCK_OK)
		{
			code = report_status(status, &err, options->key);
			report_holder(handle, status, options->key);
			break;
		}
		told = false;
		notice("elected for \"%s\", term %lld", options->key,
			   (long long) dlock_version(lock));
		code = run_under(lock, options, &reason);
		if (reason == END_NONE || options->once || told_to_end)
			break;
	}
	dlock_close(handle);
	guard_stop();
	return code;
}
