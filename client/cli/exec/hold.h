/*
 * hold.h
 *	  The locks of one command.
 */
#ifndef DLOCK_CLI_HOLD_H
#define DLOCK_CLI_HOLD_H

#include "cli.h"

/* hold.c */
typedef enum
{
	HOLD_ACQUIRE,
	HOLD_CAMPAIGN,
	HOLD_NESTED					/* what we run under is ours already */
} HoldMode;

typedef struct
{
	const char **keys;
	dlock_lock **locks;			/* in the same order */
	bool	   *borrowed;		/* of the dlock exec around us */
	int			count;
} Hold;

extern void hold_init(Hold *hold, const Options *options);
extern dlock_status hold_acquire(Hold *hold, dlock_handle *handle,
								 const Options *options,
								 const dlock_options *lock_options,
								 HoldMode mode, dlock_error *err, int *signo);
extern int64_t hold_left(const Hold *hold);
extern int64_t hold_ttl(const Hold *hold);
extern const dlock_lock *hold_lost(const Hold *hold);
extern dlock_status hold_release(Hold *hold, int64_t timeout, dlock_error *err);
extern void hold_free(Hold *hold);
extern const char *hold_name(const Hold *hold);

/* waiting.c: what is told meanwhile */
typedef struct
{
	dlock_handle *handle;
	const Hold *hold;
	const char *owner;			/* of our request */
	int64_t		began;
	int64_t		until;
	int64_t		tell_at;		/* the next time */
	bool		told;
	bool		is_missing;		/* in the queue, when it was last looked at */
	bool		is_live;		/* on a terminal */
} Waiting;

extern void waiting_begin(Waiting *waiting, dlock_handle *handle, const Hold *hold,
						  const dlock_options *options);
extern void waiting_tell(Waiting *waiting);
extern void waiting_end(Waiting *waiting, bool granted);

/* denied.c: messages about a key that we did not get, or have lost */
extern void text_pending(Text *line, dlock_handle *handle, int32_t pid);
extern int	report_denied(dlock_handle *handle, dlock_status status,
						  const dlock_error *err, const Hold *hold,
						  const Options *options);
extern void report_lost(dlock_handle *handle, const Options *options);

/* inherit.c: the locks that we run under, as the environment says */
extern int64_t inherited_version(const char *key, const char **owner);	/* 0: none */
extern char **make_variables(const Hold *hold, bool fence);
extern void free_variables(char **variables);

#endif							/* DLOCK_CLI_HOLD_H */
