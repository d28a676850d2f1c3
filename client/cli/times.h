/*
 * times.h
 *	  Every time of the command line, in milliseconds.
 */
#ifndef DLOCK_CLI_TIMES_H
#define DLOCK_CLI_TIMES_H

#include "base/constants.h"

/* exec, elect: from SIGTERM to SIGKILL, and to yield, unless options say so */
#define DEFAULT_KILL_AFTER_MS 5000
#define DEFAULT_CLEANUP_MS 5000

/* the command is killed this long before our time to yield is up, at most */
#define YIELD_MARGIN_MS 500

/* how long to wait for killed processes to vanish */
#define ZOMBIE_MS 1000

/* how often to look for the last process of a group, and for the lock */
#define GROUP_TICK_MS 5
#define MIN_TICK_MS 5

/* how long the release after the command may take beyond the deadline */
#define RELEASE_MARGIN_MS 1000

/* elect: how often an unreachable server is tried again */
#define RETRY_MS 1000

/* how long a signal may take to end us if the server is silent */
#define GOODBYE_MS 1000

/*
 * what is told of a wait: after how long, how often on a terminal and elsewhere, and how
 * long the server may take to tell who holds the lock
 */
#define TELL_WAIT_MS 500
#define LIVE_MS 1000
#define TELL_AGAIN_MS 30000
#define LOOK_MS 500

/* how long to wait for the name of the holder of a busy lock */
#define HOLDER_MS 1000

/* watch: how often a standby is looked at */
#define STANDBY_LOOK_MS 1000

/* how late the parent of the guard may be, at most, before the guard acts */
#define MAX_PATIENCE_MS 20

/* how often the guard looks whether a group that it ends is gone */
#define GUARD_TICK_MS 10

/*
 * top: time between two looks, how long an answer may take, the time that is
 * kept in mind and how often, and how long after ESC the rest of a key may come
 */
#define DEFAULT_INTERVAL_MS 2000
#define MIN_INTERVAL_MS 100
#define MAX_INTERVAL_MS 60000
#define MAX_ANSWER_MS 3000
#define WINDOW_MS 60000
#define LOOK_GAP_MS 1000
#define ESCAPE_MS 100

/* top: the pause after a look is at least this many times as long as the look */
#define LOOK_REST 9

#endif							/* DLOCK_CLI_TIMES_H */
