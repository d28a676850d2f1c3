/*-------------------------------------------------------------------------
 *
 * cron_job.c
 *	  A job that every machine starts and only one of them runs.
 *
 *	  cron_job CONNINFO KEY COMMAND
 *
 * Put it in the crontab of all machines.  It does not wait for the lock: a
 * machine that comes late has nothing to do.  While the command runs, the
 * library renews the lock; if the lock is lost, the command is killed before
 * another machine can get it.
 *
 * Exit status: 0 done, or another machine runs it; 1 the command failed; 2 the
 * lock could not be acquired; 3 the lock was lost.
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dlock.h"

static volatile pid_t job;

/* Called in the renewal thread, so it does no more than send a signal. */
static void
on_event(const dlock_event *event, void *arg)
{
	(void) arg;
	if (event->type == DLOCK_EVENT_LOST && job > 0)
		kill(-job, SIGKILL);
}

int
main(int argc, char **argv)
{
	dlock_handle *handle;
	dlock_lock *lock;
	dlock_options options;
	dlock_error err;
	dlock_status status;
	int			result;

	if (argc != 4)
	{
		fprintf(stderr, "usage: %s CONNINFO KEY COMMAND\n", argv[0]);
		return 2;
	}
	if (dlock_open(argv[1], NULL, &handle, &err) != DLOCK_OK)
	{
		fprintf(stderr, "%s\n", err.message);
		return 2;
	}

	/* without a TTL: the server's default, and it is renewed */
	dlock_options_init(&options);
	options.callback = on_event;
	status = dlock_acquire(handle, argv[2], &options, &lock, &err);
	if (status != DLOCK_OK)
	{
		printf("%s: %s\n", dlock_status_name(status), err.message);
		dlock_close(handle);
		return status == DLOCK_BUSY ? 0 : 2;
	}
	printf("running with version %lld\n", (long long) dlock_version(lock));
	fflush(stdout);

	/* a process group of its own, so that its children are killed with it */
	job = fork();
	if (job == 0)
	{
		setpgid(0, 0);
		execl("/bin/sh", "sh", "-c", argv[3], (char *) NULL);
		_exit(127);
	}
	setpgid(job, job);
	/* the lock may have been lost before there was a process to kill */
	if (!dlock_is_owner(lock))
		kill(-job, SIGKILL);
	while (waitpid(job, &result, 0) < 0 && errno == EINTR)
		;

	status = dlock_release(lock, -1, &err);
	printf("%s\n", dlock_status_name(status));
	dlock_free(lock);
	dlock_close(handle);
	if (status != DLOCK_OK)
		return 3;
	return WIFEXITED(result) && WEXITSTATUS(result) == 0 ? 0 : 1;
}
