/*
 * signals.h
 *	  Signals and other news, read by the main loop one by one.
 */
#ifndef DLOCK_CLI_SIGNALS_H
#define DLOCK_CLI_SIGNALS_H

#include <stdbool.h>
#include <stdint.h>

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

#endif							/* DLOCK_CLI_SIGNALS_H */
