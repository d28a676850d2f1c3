/*
 * child.h
 *	  A command in a process group of its own, and the guard that ends it when
 *	  we cannot.
 */
#ifndef DLOCK_CLI_CHILD_H
#define DLOCK_CLI_CHILD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "clock.h"

/* signals.c: signals and other news, read by the main loop one by one */
#define NEWS_NONE 0
#define NEWS_LOCK 0x80			/* something happened to the lock */
#define NEWS_INPUT 0x81			/* the file that was added can be read */

extern void news_start(void);
extern void news_add_input(int fd);
extern void news_post(int news);
extern int	news_wait(int64_t until);	/* NEWS_NONE: time is up */
extern bool is_ending_signal(int signo);
extern void die_by_signal(int signo);
extern void default_signals(void);
extern void end_by_signals(void);
extern int	signal_number(const char *name);	/* -1: no such signal */

/* child.c */
typedef struct
{
	pid_t		group;			/* 0: none */
	bool		running;		/* the command itself, not what it left behind */
	int			status;			/* of waitpid, once it is not running */
	bool		has_terminal;	/* we gave it the terminal */
} Child;

extern int	child_start(Child *child, char **argv, char *const *variables);
extern void child_reap(Child *child);
extern void child_signal(const Child *child, int signo);
extern bool child_group_alive(const Child *child);
extern void child_end(Child *child);
extern int	child_exit_code(const Child *child);

/* guard.c */
extern bool guard_start(void);
extern void guard_watch(pid_t group, int64_t end_at, int64_t kill_at);
extern void guard_told(void);
extern void guard_forget(void);
extern void guard_in_child(void);
extern void guard_stop(void);

#endif							/* DLOCK_CLI_CHILD_H */
