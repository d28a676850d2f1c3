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

/* child.c */
typedef struct
{
	pid_t		group;			/* 0: none */
	bool		running;		/* the command itself, not what it left behind */
	int			status;			/* of waitpid, once it is not running */
	bool		has_terminal;	/* we gave it the terminal */
} Child;

extern int	child_start(Child *child, char **argv, char *const *variables);
extern int	child_become(char **argv);
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
