/*
 * cli.h
 *	  The command line of dlock: what its files share.
 */
#ifndef DLOCK_CLI_H
#define DLOCK_CLI_H

#include "dlock.h"
#include "text.h"

/*
 * Exit codes are the interface for scripts: --help, the man page and docs/cli.md
 * list them.  They are those of sysexits.h where possible, because few commands
 * use these, and "exec" passes on the exit code of its command.
 */
#define EXIT_USAGE			64	/* EX_USAGE */
#define EXIT_UNREACHABLE	69	/* EX_UNAVAILABLE */
#define EXIT_SERVER			70	/* EX_SOFTWARE */
#define EXIT_INTERNAL		71	/* EX_OSERR */
#define EXIT_BUSY			75	/* EX_TEMPFAIL */
#define EXIT_LOST			76
#define EXIT_DENIED			77	/* EX_NOPERM */
#define EXIT_NOT_READY		78	/* EX_CONFIG */
#define EXIT_NOT_EXECUTABLE	126
#define EXIT_NOT_FOUND		127

typedef enum
{
	CMD_EXEC,
	CMD_ELECT,
	CMD_ACQUIRE,
	CMD_REFRESH,
	CMD_RELEASE,
	CMD_CHECK,
	CMD_INFO,
	CMD_LS,
	CMD_TOP,
	CMD_WATCH,
	CMD_FORCE_RELEASE,
	CMD_STATS,
	CMD_HEALTH,
	CMD_SHARD,
	COMMANDS
} CommandId;

typedef struct
{
	/* the connection */
	const char *dbname;
	const char *host;
	const char *port;
	const char *user;
	int64_t		timeout;		/* -1: the library's */

	/* what to lock */
	const char *key;
	const char **also;			/* further keys, of --and */
	int			also_count;
	int64_t		version;		/* 0: none given */
	const char *owner;
	const char *value;
	int64_t		ttl;			/* 0: the server's */
	int64_t		wait;			/* -1: without limit */
	bool		wait_given;
	int64_t		priority;
	int64_t		cleanup;		/* -1: none given */
	bool		force;
	int64_t		slots;			/* 0: none given */
	bool		shared;
	int64_t		at_least;
	int64_t		delay;
	bool		lazy;
	const char *reason;

	/* what to do with shards */
	const char *words[4];
	int			word_count;
	const char **routers;		/* of --router */
	int			router_count;
	bool		asynchronous;

	/* how to run the command */
	char	  **command;
	int64_t		kill_after;		/* -1: none given */
	int			on_preempt;		/* signal; 0: none */
	bool		once;
	bool		observe;

	/* how to show it */
	bool		json;
	bool		waiters;
	bool		holders;
	const char *sort;
	int64_t		limit;
	int64_t		interval;
	int64_t		count;
	bool		until_free;
	bool		quiet;
	bool		help;
} Options;

/* main.c */
extern const char *current_command;

/* output.c */
extern void fill_standard_files(void);
extern bool finish_output(Text *out);
extern bool output_unread(void);
extern int	close_output(int code);
extern int	terminal_width(void);

/* options.c */
extern CommandId parse_command(const char *name);
extern void parse_options(CommandId id, int argc, char **argv,
						  Options *options);

/* help.c */
extern const char *command_name(CommandId id);
extern void show_help(CommandId id);	/* COMMANDS: of dlock itself */
extern bool option_allowed(CommandId id, const char *name);

/* connect.c */
extern bool encoding_is_ours;
extern void make_conninfo(const Options *options, Text *conninfo);
extern dlock_handle *connect_server(const Options *options);
extern int	exit_code(dlock_status status);
extern const char *advice(dlock_status status, const dlock_error *err);
extern int	report_status(dlock_status status, const dlock_error *err,
						  const char *key);
extern int	give_up(dlock_handle *handle, dlock_status status,
					const dlock_error *err, const char *key);
extern const char *default_owner(void);
extern void fill_lock_options(const Options *options, dlock_options *out);

/* hold.c: the locks of one command */
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

/* holders.c */
extern void report_holders(dlock_handle *handle, dlock_status status,
						   const char *const *keys, int count);
extern int	report_denied(dlock_handle *handle, dlock_status status,
						  const dlock_error *err, const Hold *hold,
						  const Options *options);
extern void report_lost(dlock_handle *handle, const Options *options);

/* inherit.c: the locks that we run under, as the environment says */
extern int64_t inherited_version(const char *key, const char **owner);	/* 0: none */
extern char **make_variables(const Hold *hold);
extern void free_variables(char **variables);

/* the commands */
extern int	run_exec(const Options *options);
extern int	run_elect(const Options *options);
extern int	run_acquire(const Options *options);
extern int	run_refresh(const Options *options);
extern int	run_release(const Options *options);
extern int	run_check(const Options *options);
extern int	run_force_release(const Options *options);
extern int	run_info(const Options *options);
extern int	run_ls(const Options *options);
extern int	run_watch(const Options *options);
extern int	run_top(const Options *options);
extern int	run_stats(const Options *options);
extern int	run_health(const Options *options);
extern int	run_shard(const Options *options);

/*
 * list.c and entry.c: keys with their grants and queues, as ls, info and top
 * show them
 */
typedef struct
{
	const char *key;
	const dlock_info *grants;	/* the oldest first; then what is pending */
	size_t		grant_count;	/* 0: free */
	int			waiting;
	int			watching;
	int64_t		longest_wait;

	/* top: how contended it has been lately; all zero elsewhere */
	int64_t		busy;
	int64_t		waits;
	int64_t		wait_time;
} Entry;

typedef struct
{
	dlock_info *infos;
	size_t		info_count;
	dlock_waiter *waiters;
	size_t		waiter_count;
	Entry	   *entries;
	size_t		count;
	size_t		size;			/* of the array */
	bool		more;			/* there may be keys that were not asked for */
} List;

extern dlock_status list_get(dlock_handle *handle, const Options *options,
							 int64_t max_keys, List *list, dlock_error *err);
extern dlock_status list_get_hot(dlock_handle *handle, const char *glob,
								 int64_t max_keys, int64_t timeout, List *list,
								 dlock_error *err);
extern dlock_status list_get_one(dlock_handle *handle, const char *key,
								 List *list, dlock_error *err);
extern Entry *list_find(const List *list, const char *key);
extern Entry *list_add(List *list, const char *key);
extern void list_by_key(List *list);
extern bool matches_pattern(const char *key, const char *glob);
extern const dlock_info *shown_grant(const Entry *entry);
extern bool is_cooling(const dlock_info *info);
extern bool is_pending(const dlock_info *info);
extern const char *shown_text(const char *text, int hidden);
extern size_t holder_count(const Entry *entry);
extern const char *entry_state(const Entry *entry);
extern const char *entry_role(const Entry *entry);
extern const char *entry_owner(const Entry *entry);
extern const char *entry_value(const Entry *entry);
extern int64_t entry_remaining(const Entry *entry);
extern int64_t entry_held_for(const Entry *entry);
extern Colour state_colour(const char *state);
extern Colour entry_colour(const Entry *entry);
extern void text_holders(Text *to, const Entry *entry);
extern void text_slots(Text *to, int32_t slots);
extern void list_sort(List *list, const char *by);
extern void list_free(List *list);
extern const char *duration_string(int64_t ms, Text *buffer);
extern void json_entry(Text *json, const char *name, const Entry *entry);
extern void json_grant(Text *json, const dlock_info *info);
extern void json_waiter(Text *json, const dlock_waiter *waiter);
extern void json_time(Text *json, const char *name, int64_t unix_ms);
extern int64_t unix_now_ms(void);
extern void text_time(Text *text, int64_t unix_ms);

#endif							/* DLOCK_CLI_H */
