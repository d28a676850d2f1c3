/*
 * child.c
 *	  A command in a process group of its own.
 *
 * Signals go to the group, so that they reach everything that the command
 * starts.  If we have the terminal, the group gets it: the command can read from
 * it, and Ctrl-C goes to the command and not to us.
 */
#include "cli.h"
#include "exec/child.h"
#include "signals.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/prctl.h>
#endif

extern char **environ;

/* SIGTTOU would stop us if we are not in the foreground. */
static void
give_terminal(pid_t group)
{
	sigset_t	ttou;
	sigset_t	old;

	sigemptyset(&ttou);
	sigaddset(&ttou, SIGTTOU);
	sigprocmask(SIG_BLOCK, &ttou, &old);
	tcsetpgrp(STDIN_FILENO, group);
	sigprocmask(SIG_SETMASK, &old, NULL);
}

static bool
have_terminal(void)
{
	return isatty(STDIN_FILENO) && tcgetpgrp(STDIN_FILENO) == getpgrp();
}

/* Our environment with these variables set, each as "NAME=value". */
static char **
environment_with(char *const *variables)
{
	size_t		have = 0;
	size_t		more = 0;
	size_t		used = 0;
	size_t		i;
	size_t		j;
	char	  **all;

	while (environ[have] != NULL)
		have++;
	while (variables[more] != NULL)
		more++;
	all = allocate((have + more + 1) * sizeof(char *));
	for (i = 0; i < have; i++)
	{
		for (j = 0; j < more; j++)
		{
			size_t		length = strcspn(variables[j], "=") + 1;

			if (strncmp(environ[i], variables[j], length) == 0)
				break;
		}
		if (j == more && !(encoding_is_ours &&
						   strncmp(environ[i], "PGCLIENTENCODING=", 17) == 0))
			all[used++] = environ[i];
	}
	for (j = 0; j < more; j++)
		all[used++] = variables[j];
	return all;
}

/* It could not be executed; returns the exit code. */
static int
tell_trouble(char *const *argv, int code)
{
	error("could not execute \"%s\": %s", argv[0], strerror(code));
	if (argv[1] == NULL && strpbrk(argv[0], " ;|&<>$") != NULL)
		hint("That is one word, not a command line: write sh -c '...' for the shell to read it, or leave the quotes away.");
	return code == ENOENT ? EXIT_NOT_FOUND : EXIT_NOT_EXECUTABLE;
}

/* Run it in our place.  Returns an exit code after an error message. */
int
child_become(char **argv)
{
	char	   *none[] = {NULL};

	fflush(NULL);
	environ = environment_with(none);
	execvp(argv[0], argv);
	return tell_trouble(argv, errno);
}

/*
 * Start it.  Returns 0, or an exit code after an error message.  There may be
 * threads, so before its exec the child does nothing that could need one of
 * their locks.
 */
int
child_start(Child *child, char **argv, char *const *variables)
{
	int			trouble[2];
	int			code = 0;
	char	  **env = environment_with(variables);
	bool		terminal = have_terminal();
	sigset_t	all;
	sigset_t	old;
	pid_t		pid;

	memset(child, 0, sizeof(*child));
#if defined(__linux__)
	/* we reap what the command leaves behind, so that no zombie stays */
	prctl(PR_SET_CHILD_SUBREAPER, 1);
#endif
	fflush(NULL);
	if (pipe(trouble) != 0)
	{
		error("could not create a pipe: %s", strerror(errno));
		free(env);
		return EXIT_INTERNAL;
	}
	fcntl(trouble[0], F_SETFD, FD_CLOEXEC);
	fcntl(trouble[1], F_SETFD, FD_CLOEXEC);

	/* none of our signal handlers must run in the child */
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, &old);
	pid = fork();
	if (pid == 0)
	{
		ssize_t		written;

		setpgid(0, 0);
		guard_in_child();
		if (terminal)
			tcsetpgrp(STDIN_FILENO, getpid());	/* SIGTTOU is blocked */
		for (code = 1; code < NSIG; code++)
		{
			struct sigaction action;

			if (sigaction(code, NULL, &action) == 0 &&
				action.sa_handler == news_post)
				signal(code, SIG_DFL);
		}
		default_signals();
		environ = env;
		execvp(argv[0], argv);
		code = errno;
		written = write(trouble[1], &code, sizeof(code));
		_exit(written == sizeof(code) ? EXIT_NOT_FOUND : EXIT_INTERNAL);
	}
	sigprocmask(SIG_SETMASK, &old, NULL);
	close(trouble[1]);
	free(env);
	if (pid < 0)
	{
		error("could not start a process: %s", strerror(errno));
		close(trouble[0]);
		return EXIT_INTERNAL;
	}

	/* parent and child both do it, because either may be first */
	setpgid(pid, pid);
	child->group = pid;
	child->running = true;
	child->has_terminal = terminal;
	if (read(trouble[0], &code, sizeof(code)) == sizeof(code))
	{
		code = tell_trouble(argv, code);
		while (waitpid(pid, &child->status, 0) < 0 && errno == EINTR)
			;
		child->running = false;
		child_end(child);
	}
	else
		code = 0;
	close(trouble[0]);
	return code;
}

/*
 * The command was stopped from its terminal.  Stop too, so that the shell takes
 * over, and continue the command when we are continued.  The lock is not renewed
 * meanwhile, but the guard still runs.
 */
static void
stop_together(Child *child)
{
	give_terminal(getpgrp());
	kill(getpid(), SIGSTOP);
	if (have_terminal())
		give_terminal(child->group);
	child_signal(child, SIGCONT);
}

/* Reap children that have ended or were stopped. */
void
child_reap(Child *child)
{
	int			status;
	pid_t		pid;

	while ((pid = waitpid(-1, &status, WNOHANG | WUNTRACED)) > 0)
	{
		if (pid != child->group)
			continue;
		if (!WIFSTOPPED(status))
		{
			child->running = false;
			child->status = status;
		}
		else if (child->has_terminal)
			stop_together(child);
	}
}

void
child_signal(const Child *child, int signo)
{
	if (child->group > 0)
		kill(-child->group, signo);
}

bool
child_group_alive(const Child *child)
{
	if (child->group == 0)
		return false;
	/* EPERM: a process of another user, as with sudo, is alive */
	return child->running || kill(-child->group, 0) == 0 || errno == EPERM;
}

/* The group has ended; take the terminal back. */
void
child_end(Child *child)
{
	guard_forget();
	if (child->has_terminal)
		give_terminal(getpgrp());
	child->has_terminal = false;
	child->group = 0;
}

/* As a shell reports it. */
int
child_exit_code(const Child *child)
{
	if (WIFSIGNALED(child->status))
		return 128 + WTERMSIG(child->status);
	return WEXITSTATUS(child->status);
}
