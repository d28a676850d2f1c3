/*
 * guard.c
 *	  A second process that ends the command when the first one cannot.
 *
 * "dlock exec" ends its command before the lock expires.  It cannot do so while
 * it is stopped, or after a kill -9, but the command would continue.  So it has a
 * guard, in a process group of its own that gets no signals from the terminal.
 * The guard reads from shared memory which group to end and when, and learns from
 * the end of a pipe that its parent is gone.  It has no connection and knows
 * nothing of locks.
 *
 * The times only move forward, so the guard sleeps until the one that it knows
 * and then looks again.  It acts a moment later than its parent would.
 */
#include "cli.h"
#include "exec/child.h"
#include "times.h"
#include "base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/prctl.h>
#endif

typedef struct
{
	atomic_int	group;			/* to end, or 0 */
	atomic_llong end_at;		/* by SIGTERM */
	atomic_llong kill_at;		/* by SIGKILL */
	atomic_bool told;			/* it was asked to end, on the order of others */
} Orders;

static Orders *orders = NULL;
static int	lifeline = -1;		/* the parent's end */
static pid_t guard = 0;

static void
guard_signal(pid_t group, int signo)
{
	kill(-group, signo);
	if (signo != SIGKILL)
		kill(-group, SIGCONT);
}

/*
 * The parent is gone: end the group in the time that is left.  If our parent was
 * asked to end before it was killed, that is the order of another "dlock exec"
 * around it, whose lock may not last as long as ours.  Then there is no time left.
 */
static void
guard_finish(void)
{
	pid_t		group = atomic_load(&orders->group);
	int64_t		kill_at = atomic_load(&orders->kill_at);

	if (group == 0)
		return;
	guard_signal(group, SIGTERM);
	while (!atomic_load(&orders->told) && dlock_now() < kill_at && kill(-group, 0) == 0)
		poll(NULL, 0, GUARD_TICK_MS);
	guard_signal(group, SIGKILL);
}

/* How much later the guard acts; short if the TTL is. */
static int64_t
patience(int64_t end_at, int64_t kill_at)
{
	int64_t		tenth = (kill_at - end_at) / 10;

	return tenth < 0 ? 0 : tenth < MAX_PATIENCE_MS ? tenth : MAX_PATIENCE_MS;
}

static void
guard_main(int pipe_end)
{
	pid_t		asked = 0;		/* the group that was sent SIGTERM */

	for (;;)
	{
		pid_t		group = atomic_load(&orders->group);
		int64_t		end_at = atomic_load(&orders->end_at);
		int64_t		kill_at = atomic_load(&orders->kill_at);
		int64_t		late = patience(end_at, kill_at);
		int64_t		now = dlock_now();
		int64_t		next = -1;
		struct pollfd fd = {.fd = pipe_end,.events = POLLIN};
		int			ready;

		if (group == 0)
			asked = 0;
		else if (now >= kill_at + late)
		{
			/* the lock may have been renewed since the times were read */
			if (now >= atomic_load(&orders->kill_at) &&
				group == atomic_load(&orders->group))
				guard_signal(group, SIGKILL);
			next = now + MAX_PATIENCE_MS;
		}
		else if (now >= end_at + late && group != asked)
		{
			if (now >= atomic_load(&orders->end_at) &&
				group == atomic_load(&orders->group))
			{
				guard_signal(group, SIGTERM);
				asked = group;
			}
			next = now;
		}
		else
			next = (group == asked ? kill_at : end_at) + late;

		ready = poll(&fd, 1, next < 0 ? -1 : dlock_poll_timeout(next, now));
		if (ready > 0)
		{
			char		wakeup[64];
			ssize_t		got = read(pipe_end, wakeup, sizeof(wakeup));

			if (got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN))
			{
				guard_finish();
				_exit(0);
			}
		}
	}
}

/* Must be called before there are threads and connections. */
bool
guard_start(void)
{
	int			ends[2];

	orders = mmap(NULL, sizeof(*orders), PROT_READ | PROT_WRITE,
				  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (orders == MAP_FAILED || pipe(ends) != 0)
		return false;
	fcntl(ends[0], F_SETFD, FD_CLOEXEC);
	fcntl(ends[1], F_SETFD, FD_CLOEXEC);
	guard = fork();
	if (guard < 0)
		return false;
	if (guard == 0)
	{
		int			signo;
		int			null = open("/dev/null", O_RDWR);

		setpgid(0, 0);
		for (signo = 1; signo < NSIG; signo++)
			signal(signo, SIG_IGN);
		close(ends[1]);
		/* a reader of our parent's output must not wait for us */
		if (null >= 0)
		{
			int			fd;

			for (fd = 0; fd <= 2; fd++)
				dup2(null, fd);
			if (null > 2)
				close(null);
		}
#if defined(__linux__)
		prctl(PR_SET_NAME, "dlock-guard");
#endif
		guard_main(ends[0]);
	}
	setpgid(guard, guard);
	close(ends[0]);
	lifeline = ends[1];
	return true;
}

void
guard_watch(pid_t group, int64_t end_at, int64_t kill_at)
{
	atomic_store(&orders->end_at, end_at);
	atomic_store(&orders->kill_at, kill_at);
	if (atomic_exchange(&orders->group, group) != group)
	{
		/* it sleeps without limit while there is nothing to guard */
		if (write(lifeline, "", 1) < 0 && errno == EPIPE)
			warning("the guard process is gone");
	}
}

/* A signal that ends was passed on to the group. */
void
guard_told(void)
{
	atomic_store(&orders->told, true);
}

void
guard_forget(void)
{
	atomic_store(&orders->group, 0);
}

/* In the child before its exec, so that the command is always guarded. */
void
guard_in_child(void)
{
	ssize_t		written;

	atomic_store(&orders->group, getpid());
	written = write(lifeline, "", 1);
	(void) written;
}

/* The command has ended, so the guard can end. */
void
guard_stop(void)
{
	if (lifeline < 0)
		return;
	guard_forget();
	close(lifeline);
	lifeline = -1;
	while (waitpid(guard, NULL, 0) < 0 && errno == EINTR)
		;
}
