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
	CMD_HANDOVER,
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
	const char *schema;			/* NULL: that of the extension */
	int64_t		timeout;		/* -1: the library's */

	/* what to lock */
	const char *key;
	const char **also;			/* further keys, of --and */
	int			also_count;
	int64_t		version;		/* 0: none given */
	const char *owner;
	bool		adopt;
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
	const char *next_owner;		/* of --to */

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
	bool		fence;
	int64_t		max_hold;		/* 0: without limit */
	int64_t		rate;			/* a permit, and no lock; 0: a lock */
	int64_t		rate_per;
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
extern bool finish_line(Text *line);
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
extern void text_summary(Text *out);
extern const char *similar_command(const char *word);
extern const char *similar_option(CommandId id, const char *word);
extern bool option_allowed(CommandId id, const char *name);

/* connect.c */
extern bool encoding_is_ours;
extern void make_conninfo(const Options *options, Text *conninfo);
extern dlock_handle *connect_server(const Options *options);
extern dlock_handle *connect_reader(const Options *options, bool *on_standby);
extern int	exit_code(dlock_status status);
extern const char *advice(dlock_status status, const dlock_error *err);
extern int	report_status(dlock_status status, const dlock_error *err,
						  const char *key);
extern int	give_up(dlock_handle *handle, dlock_status status,
					const dlock_error *err, const char *key);
extern void fill_lock_options(const Options *options, dlock_options *out);

/* the commands */
extern int	run_exec(const Options *options);
extern int	run_elect(const Options *options);
extern int	run_acquire(const Options *options);
extern int	run_refresh(const Options *options);
extern int	run_release(const Options *options);
extern int	run_check(const Options *options);
extern int	run_handover(const Options *options);
extern int	run_force_release(const Options *options);
extern int	run_info(const Options *options);
extern int	run_ls(const Options *options);
extern int	run_watch(const Options *options);
extern int	run_top(const Options *options);
extern int	run_stats(const Options *options);
extern int	run_health(const Options *options);
extern int	run_shard(const Options *options);

#endif							/* DLOCK_CLI_H */
