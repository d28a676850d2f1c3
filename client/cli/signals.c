/*
 * signals.c
 *	  Signals, and news from the library's threads, as one stream that the main
 *	  loop reads from a pipe, because signal handlers may write to one.
 */
#include "cli.h"
#include "signals.h"
#include "base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static const struct
{
	int			signo;
	const char *name;
}			signals[] = {
	{SIGHUP, "HUP"},
	{SIGINT, "INT"},
	{SIGQUIT, "QUIT"},
	{SIGTERM, "TERM"},
	{SIGUSR1, "USR1"},
	{SIGUSR2, "USR2"},
	{SIGWINCH, "WINCH"},
	{SIGCONT, "CONT"},
	{SIGCHLD, "CHLD"},
	{SIGKILL, "KILL"},			/* not caught, but can be named in options */
};

#define SIGNALS (sizeof(signals) / sizeof(signals[0]))

static int	news[2] = {-1, -1};
static int	input = -1;			/* poll() ignores negative ones */
static struct sigaction old_pipe;

/* Also called by signal handlers.  A full pipe wakes us up anyway. */
void
news_post(int what)
{
	int			saved = errno;
	unsigned char byte = (unsigned char) what;

	if (write(news[1], &byte, 1) < 0)
		errno = saved;
	errno = saved;
}

void
news_start(void)
{
	struct sigaction action;
	size_t		i;

	if (pipe(news) != 0)
	{
		error("could not create a pipe: %s", strerror(errno));
		exit(EXIT_INTERNAL);
	}
	for (i = 0; i < 2; i++)
	{
		fcntl(news[i], F_SETFD, FD_CLOEXEC);
		fcntl(news[i], F_SETFL, O_NONBLOCK);
	}
	memset(&action, 0, sizeof(action));
	action.sa_handler = news_post;
	action.sa_flags = SA_RESTART;
	sigfillset(&action.sa_mask);
	for (i = 0; i < SIGNALS; i++)
	{
		struct sigaction old;

		/* signals that nohup or a shell made us ignore stay ignored */
		if (signals[i].signo == SIGKILL ||
			(is_ending_signal(signals[i].signo) &&
			 sigaction(signals[i].signo, NULL, &old) == 0 &&
			 old.sa_handler == SIG_IGN))
			continue;
		sigaction(signals[i].signo, &action, NULL);
	}
	sigaction(SIGPIPE, NULL, &old_pipe);
	signal(SIGPIPE, SIG_IGN);
}

void
news_add_input(int fd)
{
	input = fd;
}

/* A number of a signal, NEWS_LOCK, or NEWS_NONE when the time is up. */
int
news_wait(int64_t until)
{
	for (;;)
	{
		unsigned char byte;
		struct pollfd fds[2] = {
			{.fd = news[0],.events = POLLIN},
			{.fd = input,.events = POLLIN}
		};
		int			left = dlock_poll_timeout(until, dlock_now());
		ssize_t		got = read(news[0], &byte, 1);

		if (got == 1)
			return byte;
		if (left == 0)
			return NEWS_NONE;
		if (poll(fds, 2, left) > 0 &&
			fds[1].revents != 0)
			return NEWS_INPUT;
	}
}

bool
is_ending_signal(int signo)
{
	return signo == SIGHUP || signo == SIGINT || signo == SIGQUIT ||
		signo == SIGTERM;
}

/* End as the signal would, so that our parent sees it. */
void
die_by_signal(int signo)
{
	sigset_t	one;

	signal(signo, SIG_DFL);
	sigemptyset(&one);
	sigaddset(&one, signo);
	sigprocmask(SIG_UNBLOCK, &one, NULL);
	kill(getpid(), signo);
	exit(128 + signo);
}

void
end_by_signals(void)
{
	size_t		i;

	for (i = 0; i < SIGNALS; i++)
		if (is_ending_signal(signals[i].signo))
			signal(signals[i].signo, SIG_DFL);
}

/* In a child: exec resets handlers, but not what is ignored or blocked. */
void
default_signals(void)
{
	sigset_t	none;

	sigaction(SIGPIPE, &old_pipe, NULL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

int
signal_number(const char *name)
{
	size_t		i;
	char	   *end;
	long		number = strtol(name, &end, 10);

	if (*name != '\0' && *end == '\0')
		return number >= 0 && number < NSIG ? (int) number : -1;
	if (strncasecmp(name, "SIG", 3) == 0)
		name += 3;
	for (i = 0; i < SIGNALS; i++)
		if (strcasecmp(name, signals[i].name) == 0)
			return signals[i].signo;
	return -1;
}
