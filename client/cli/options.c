/*
 * options.c
 *	  Reading the command line.
 */
#include "exec/hold.h"
#include "signals.h"
#include "times.h"

#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Options without a short form have a number from here on: their row. */
#define FIRST_LONG 256

typedef enum
{
	STRING,
	FLAG,
	DURATION,					/* or 0 */
	POSITIVE_DURATION,
	NUMBER,						/* from low on */
	SPECIAL						/* has its own function */
} Kind;

typedef struct
{
	const char *name;
	char		letter;			/* the short form, or 0 */
	Kind		kind;
	size_t		offset;			/* of its field in Options */
	int64_t		low;
	void		(*take) (const char *arg, Options *options);
} OptionRow;

static void take_wait(const char *arg, Options *options);
static void take_owner(const char *arg, Options *options);
static void take_on_preempt(const char *arg, Options *options);
static void take_rate(const char *arg, Options *options);
static void take_sort(const char *arg, Options *options);
static void take_interval(const char *arg, Options *options);
static void take_and(const char *arg, Options *options);
static void take_router(const char *arg, Options *options);

#define MAX_SLOTS 10000			/* of the server, as for --rate */

#define FIELD(name) offsetof(Options, name)

static const OptionRow option_rows[] = {
	{"dbname", 'd', STRING, FIELD(dbname), 0, NULL},
	{"host", 'h', STRING, FIELD(host), 0, NULL},
	{"port", 'p', STRING, FIELD(port), 0, NULL},
	{"username", 'U', STRING, FIELD(user), 0, NULL},
	{"schema", 0, STRING, FIELD(schema), 0, NULL},
	{"timeout", 0, POSITIVE_DURATION, FIELD(timeout), 0, NULL},
	{"help", 0, FLAG, FIELD(help), 0, NULL},
	{"ttl", 0, POSITIVE_DURATION, FIELD(ttl), 0, NULL},
	{"wait", 0, SPECIAL, 0, 0, take_wait},
	{"value", 0, STRING, FIELD(value), 0, NULL},
	{"priority", 0, NUMBER, FIELD(priority), 0, NULL},
	{"cleanup", 0, DURATION, FIELD(cleanup), 0, NULL},
	{"force", 0, FLAG, FIELD(force), 0, NULL},
	{"owner", 0, SPECIAL, 0, 0, take_owner},
	{"adopt", 0, FLAG, FIELD(adopt), 0, NULL},
	{"slots", 0, NUMBER, FIELD(slots), 1, NULL},
	{"shared", 0, FLAG, FIELD(shared), 0, NULL},
	{"and", 0, SPECIAL, 0, 0, take_and},
	{"at-least", 0, DURATION, FIELD(at_least), 0, NULL},
	{"delay", 0, DURATION, FIELD(delay), 0, NULL},
	{"lazy", 0, FLAG, FIELD(lazy), 0, NULL},
	{"kill-after", 0, DURATION, FIELD(kill_after), 0, NULL},
	{"on-preempt", 0, SPECIAL, 0, 0, take_on_preempt},
	{"fence", 0, FLAG, FIELD(fence), 0, NULL},
	{"max-hold", 0, POSITIVE_DURATION, FIELD(max_hold), 0, NULL},
	{"rate", 0, SPECIAL, 0, 0, take_rate},
	{"once", 0, FLAG, FIELD(once), 0, NULL},
	{"observe", 0, FLAG, FIELD(observe), 0, NULL},
	{"reason", 0, STRING, FIELD(reason), 0, NULL},
	{"to", 0, STRING, FIELD(next_owner), 0, NULL},
	{"sort", 0, SPECIAL, 0, 0, take_sort},
	{"waiters", 0, FLAG, FIELD(waiters), 0, NULL},
	{"holders", 0, FLAG, FIELD(holders), 0, NULL},
	{"limit", 0, NUMBER, FIELD(limit), 1, NULL},
	{"interval", 0, SPECIAL, 0, 0, take_interval},
	{"count", 0, NUMBER, FIELD(count), 1, NULL},
	{"until-free", 0, FLAG, FIELD(until_free), 0, NULL},
	{"json", 0, FLAG, FIELD(json), 0, NULL},
	{"quiet", 0, FLAG, FIELD(quiet), 0, NULL},
	{"router", 0, SPECIAL, 0, 0, take_router},
	{"asynchronous", 0, FLAG, FIELD(asynchronous), 0, NULL},
};

#define OPTIONS ((int) (sizeof(option_rows) / sizeof(option_rows[0])))

CommandId
parse_command(const char *name)
{
	int			id;

	const char *similar;

	if (strcmp(name, "list") == 0)
		return CMD_LS;
	for (id = 0; id < COMMANDS; id++)
		if (strcmp(name, command_name((CommandId) id)) == 0)
			return (CommandId) id;
	similar = similar_command(name);
	if (similar != NULL)
		usage_error("unknown command \"%s\", did you mean \"%s\"?", name, similar);
	usage_error("unknown command \"%s\"", name);
}

static int64_t
duration(const char *option, const char *string)
{
	int64_t		ms;

	if (!parse_duration(string, &ms))
		usage_error("invalid duration \"%s\" for --%s: write 500ms, 30s, 5min, 2h or 1d",
					string, option);
	return ms;
}

static int64_t
positive_duration(const char *option, const char *string)
{
	int64_t		ms = duration(option, string);

	if (ms == 0)
		usage_error("--%s must be greater than 0", option);
	return ms;
}

static int64_t
number(const char *what, const char *string, int64_t low, int64_t high)
{
	char	   *end;
	long long	value;

	errno = 0;
	value = strtoll(string, &end, 10);
	if (*string == '\0' || *end != '\0' || errno != 0 ||
		value < low || value > high)
		usage_error("invalid %s \"%s\", must be a number from %lld to %lld",
					what, string, (long long) low, (long long) high);
	return value;
}

static void
take_wait(const char *arg, Options *options)
{
	options->wait_given = true;
	options->wait = strcmp(arg, "forever") == 0 ? -1 : duration("wait", arg);
}

static void
take_owner(const char *arg, Options *options)
{
	if (*arg == '\0')
		usage_error("--owner must not be empty");
	options->owner = arg;
}

static void
take_on_preempt(const char *arg, Options *options)
{
	options->on_preempt = strcmp(arg, "none") == 0 ? 0 : signal_number(arg);
	if (options->on_preempt < 0)
		usage_error("unknown signal \"%s\" for --on-preempt", arg);
}

/* A number of times, and in what time: 10/min, 100/30s. */
static void
take_rate(const char *arg, Options *options)
{
	const char *slash = strchr(arg, '/');
	Text		part = {0};

	if (slash == NULL || slash[1] == '\0')
		usage_error("invalid rate \"%s\": write 10/min or 100/30s", arg);
	text_format(&part, "%.*s", (int) (slash - arg), arg);
	options->rate = number("number of --rate", part.data, 1, MAX_SLOTS);
	text_clear(&part);
	/* a unit alone is one of it */
	text_format(&part, "%s%s", strspn(slash + 1, "0123456789.") == 0 ? "1" : "", slash + 1);
	options->rate_per = positive_duration("rate", part.data);
	text_free(&part);
}

static void
take_sort(const char *arg, Options *options)
{
	if (strcmp(arg, "key") != 0 && strcmp(arg, "remaining") != 0 &&
		strcmp(arg, "waiters") != 0 && strcmp(arg, "held") != 0 && strcmp(arg, "busy") != 0)
		usage_error("invalid order \"%s\", must be key, remaining, waiters, held or busy", arg);
	options->sort = arg;
}

static void
take_interval(const char *arg, Options *options)
{
	options->interval = duration("interval", arg);
	if (options->interval < MIN_INTERVAL_MS)
		usage_error("--interval must be at least %dms", MIN_INTERVAL_MS);
}

static void
take_and(const char *arg, Options *options)
{
	if (*arg == '\0')
		usage_error("the key of --and must not be empty");
	options->also = reallocate(options->also, (size_t) (options->also_count + 1) * sizeof(char *));
	options->also[options->also_count++] = arg;
}

static void
take_router(const char *arg, Options *options)
{
	options->routers = reallocate(options->routers, (size_t) (options->router_count + 1) * sizeof(char *));
	options->routers[options->router_count++] = arg;
}

static void
take_option(const OptionRow *row, const char *arg, Options *options)
{
	char	   *field = (char *) options + row->offset;
	char		name[32];

	switch (row->kind)
	{
		case STRING:
			memcpy(field, &arg, sizeof(arg));
			break;
		case FLAG:
			*(bool *) field = true;
			break;
		case DURATION:
			*(int64_t *) (void *) field = duration(row->name, arg);
			break;
		case POSITIVE_DURATION:
			*(int64_t *) (void *) field = positive_duration(row->name, arg);
			break;
		case NUMBER:
			snprintf(name, sizeof(name), "--%s", row->name);
			*(int64_t *) (void *) field = number(name, arg, row->low, INT32_MAX);
			break;
		case SPECIAL:
			row->take(arg, options);
			break;
	}
}

/* The row of what getopt_long() returned, or NULL. */
static const OptionRow *
find_row(int c)
{
	int			i;

	if (c >= FIRST_LONG)
		return &option_rows[c - FIRST_LONG];
	for (i = 0; i < OPTIONS; i++)
		if (c == option_rows[i].letter)
			return &option_rows[i];
	return NULL;
}

/* The table as getopt_long() wants it. */
static void
make_long_options(struct option *to)
{
	int			i;

	memset(to, 0, (OPTIONS + 1) * sizeof(*to));
	for (i = 0; i < OPTIONS; i++)
	{
		const OptionRow *row = &option_rows[i];

		to[i].name = row->name;
		to[i].has_arg = row->kind == FLAG ? no_argument : required_argument;
		to[i].val = row->letter != 0 ? row->letter : FIRST_LONG + i;
	}
}

/* Connection options and --help belong to every command. */
static bool
is_common(const OptionRow *row)
{
	return row->letter != 0 || strcmp(row->name, "schema") == 0 ||
		strcmp(row->name, "timeout") == 0 || strcmp(row->name, "help") == 0;
}

static bool
runs_command(CommandId id)
{
	return id == CMD_EXEC || id == CMD_ELECT;
}

static bool
takes_version(CommandId id)
{
	return id == CMD_REFRESH || id == CMD_RELEASE || id == CMD_CHECK || id == CMD_HANDOVER;
}

static void
take_positional(CommandId id, char *arg, Options *options)
{
	if (id == CMD_SHARD)
	{
		if (options->word_count == (int) (sizeof(options->words) / sizeof(options->words[0])))
			usage_error("too many arguments, the first one is \"%s\"", arg);
		options->words[options->word_count++] = arg;
	}
	else if (options->key == NULL)
		options->key = arg;
	else if ((takes_version(id) || id == CMD_FORCE_RELEASE) && options->version == 0)
		options->version = number("version", arg, 1, INT64_MAX);
	else
		usage_error("too many arguments, the first one is \"%s\"", arg);
}

/* Under "dlock exec", key and version default to the lock of the command. */
static void
take_environment(CommandId id, Options *options)
{
	if (!takes_version(id))
		return;
	if (options->key == NULL && getenv("DLOCK_VERSION") != NULL)
		options->key = getenv("DLOCK_KEY");
	if (options->key != NULL && options->version == 0 && options->owner == NULL)
		options->version = inherited_version(options->key, NULL);
}

/* A permit is no lock, so there is nothing to say about one. */
static void
check_rate(const Options *options)
{
	if (options->rate > 0 &&
		(options->ttl > 0 || options->slots > 0 || options->shared || options->also_count > 0 ||
		 options->at_least > 0 || options->delay > 0 || options->lazy || options->value != NULL ||
		 options->cleanup >= 0 || options->force || options->owner != NULL || options->adopt ||
		 options->kill_after >= 0 || options->on_preempt != SIGTERM || options->fence ||
		 options->max_hold > 0))
		usage_error("--rate takes no lock: it goes together with --wait, --priority and --quiet only");
}

/* Which kind of lock, and of how many keys. */
static void
check_kind(const Options *options)
{
	int			i;
	int			j;

	if (options->adopt && options->owner == NULL)
		usage_error("--adopt needs --owner: whose lock is to be taken over");
	if (options->owner != NULL && !options->adopt && options->also_count > 0)
		usage_error("--owner can be used together with --and only with --adopt");
	if (options->shared && options->slots > 0)
		usage_error("--shared and --slots cannot be used together");
	if (options->slots > MAX_SLOTS)
		usage_error("--slots must be between 1 and %d; --shared is for any number", MAX_SLOTS);
	if (options->lazy && options->delay > 0)
		usage_error("--lazy and --delay cannot be used together");
	if (options->at_least > 0 && options->ttl > 0 && options->at_least > options->ttl)
		usage_error("--at-least must not be longer than --ttl");
	if (options->max_hold > 0 && options->ttl > options->max_hold)
		usage_error("--max-hold must not be shorter than --ttl");
	if (options->also_count == 0)
		return;
	if (options->cleanup >= 0 || options->force || options->at_least > 0 ||
		options->delay > 0 || options->lazy)
		usage_error("--cleanup, --force, --at-least, --delay and --lazy cannot be used together with --and");
	for (i = 0; i < options->also_count; i++)
		for (j = -1; j < i; j++)
			if (strcmp(options->also[i], j < 0 ? options->key : options->also[j]) == 0)
				usage_error("key \"%s\" is given more than once", options->also[i]);
}

static void
check_options(CommandId id, Options *options)
{
	if (options->key == NULL && id != CMD_LS && id != CMD_TOP &&
		id != CMD_STATS && id != CMD_HEALTH && id != CMD_SHARD)
		usage_error("no key given");
	if (options->key != NULL && (id == CMD_STATS || id == CMD_HEALTH))
		usage_error("too many arguments, the first one is \"%s\"", options->key);
	if (options->key != NULL && options->key[0] == '\0')
		usage_error("the key must not be empty");
	if (id == CMD_HANDOVER && options->version == 0)
		usage_error("no version given");
	if (id == CMD_HANDOVER && (options->next_owner == NULL || *options->next_owner == '\0'))
		usage_error("no owner given: --to says who gets the lock");
	if (takes_version(id) && options->version == 0 && options->owner == NULL)
		usage_error("no version and no --owner given");
	if (runs_command(id) && !options->observe && options->command == NULL)
		usage_error("no command given after key \"%s\"", options->key);
	if (options->observe && options->command != NULL)
		usage_error("--observe runs no command");
	check_kind(options);
	check_rate(options);
	if (id == CMD_LS && options->waiters && options->holders)
		usage_error("--waiters and --holders cannot be used together");
	if (id == CMD_LS && options->sort != NULL && strcmp(options->sort, "busy") == 0)
		usage_error("\"dlock ls\" has no order busy, \"dlock top\" has");
	if (id == CMD_FORCE_RELEASE && options->reason == NULL)
		usage_error("no --reason given");

	/* the time between SIGTERM and SIGKILL is part of the TTL */
	if (runs_command(id) && options->kill_after >= 0 && options->ttl > 0 &&
		options->kill_after > options->ttl / 4)
		usage_error("--kill-after must not be more than a quarter of --ttl");
}

static void
show_help_and_exit(CommandId id)
{
	show_help(id);
	exit(close_output(0));
}

static void
unknown_option(CommandId id, const char *arg)
{
	char		word[64];
	const char *similar = NULL;

	if (strncmp(arg, "--", 2) == 0)
	{
		snprintf(word, sizeof(word), "%.*s", (int) strcspn(arg + 2, "="), arg + 2);
		similar = similar_option(id, word);
	}
	if (similar != NULL)
		usage_error("unknown option \"%s\", did you mean --%s?", arg, similar);
	usage_error("unknown option \"%s\"", arg);
}

/*
 * Options and arguments in the order in which they come: the second argument
 * of exec is where the command starts.
 */
static void
scan(CommandId id, int argc, char **argv, Options *options)
{
	struct option long_options[OPTIONS + 1];

	make_long_options(long_options);
	opterr = 0;
	for (;;)
	{
		int			place = optind;
		int			c = getopt_long(argc, argv, "-:d:h:p:U:", long_options, NULL);
		const OptionRow *row;

		if (c == -1)
			return;
		if (c == 1)
		{
			if (runs_command(id) && options->key != NULL)
			{
				optind--;
				return;
			}
			take_positional(id, optarg, options);
			continue;
		}
		if (c == ':')
			usage_error("option \"%s\" needs an argument", argv[optind - 1]);
		if (c == '?' && strcmp(argv[place], "-?") == 0)
			show_help_and_exit(id);
		row = find_row(c);
		if (c == '?' || row == NULL)
			unknown_option(id, argv[place]);
		if (!is_common(row) && !option_allowed(id, row->name))
			usage_error("\"dlock %s\" has no option --%s", command_name(id), row->name);
		take_option(row, optarg, options);
		if (options->help)
			show_help_and_exit(id);
	}
}

void
parse_options(CommandId id, int argc, char **argv, Options *options)
{
	options->timeout = -1;
	options->cleanup = -1;
	options->kill_after = -1;
	options->on_preempt = SIGTERM;
	options->interval = DEFAULT_INTERVAL_MS;
	if (id == CMD_ELECT || id == CMD_SHARD)
		options->wait = -1;

	scan(id, argc, argv, options);
	for (; optind < argc; optind++)
	{
		if (runs_command(id) && options->key != NULL)
		{
			options->command = argv + optind;
			break;
		}
		take_positional(id, argv[optind], options);
	}
	is_quiet = options->quiet;
	take_environment(id, options);
	check_options(id, options);
}
