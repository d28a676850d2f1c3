/*
 * options.c
 *	  Reading the command line.
 */
#include "cli.h"
#include "child.h"

#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum
{
	OPT_TTL = 256,
	OPT_WAIT,
	OPT_VALUE,
	OPT_PRIORITY,
	OPT_CLEANUP,
	OPT_FORCE,
	OPT_OWNER,
	OPT_KILL_AFTER,
	OPT_ON_PREEMPT,
	OPT_ONCE,
	OPT_OBSERVE,
	OPT_REASON,
	OPT_SORT,
	OPT_WAITERS,
	OPT_LIMIT,
	OPT_INTERVAL,
	OPT_COUNT,
	OPT_UNTIL_FREE,
	OPT_JSON,
	OPT_QUIET,
	OPT_TIMEOUT,
	OPT_HELP
};

static const struct option long_options[] = {
	{"dbname", required_argument, NULL, 'd'},
	{"host", required_argument, NULL, 'h'},
	{"port", required_argument, NULL, 'p'},
	{"username", required_argument, NULL, 'U'},
	{"timeout", required_argument, NULL, OPT_TIMEOUT},
	{"help", no_argument, NULL, OPT_HELP},
	{"ttl", required_argument, NULL, OPT_TTL},
	{"wait", required_argument, NULL, OPT_WAIT},
	{"value", required_argument, NULL, OPT_VALUE},
	{"priority", required_argument, NULL, OPT_PRIORITY},
	{"cleanup", required_argument, NULL, OPT_CLEANUP},
	{"force", no_argument, NULL, OPT_FORCE},
	{"owner", required_argument, NULL, OPT_OWNER},
	{"kill-after", required_argument, NULL, OPT_KILL_AFTER},
	{"on-preempt", required_argument, NULL, OPT_ON_PREEMPT},
	{"once", no_argument, NULL, OPT_ONCE},
	{"observe", no_argument, NULL, OPT_OBSERVE},
	{"reason", required_argument, NULL, OPT_REASON},
	{"sort", required_argument, NULL, OPT_SORT},
	{"waiters", no_argument, NULL, OPT_WAITERS},
	{"limit", required_argument, NULL, OPT_LIMIT},
	{"interval", required_argument, NULL, OPT_INTERVAL},
	{"count", required_argument, NULL, OPT_COUNT},
	{"until-free", no_argument, NULL, OPT_UNTIL_FREE},
	{"json", no_argument, NULL, OPT_JSON},
	{"quiet", no_argument, NULL, OPT_QUIET},
	{NULL, 0, NULL, 0}
};

CommandId
parse_command(const char *name)
{
	int			id;

	for (id = 0; id < COMMANDS; id++)
		if (strcmp(name, command_name((CommandId) id)) == 0)
			return (CommandId) id;
	usage_error("unknown command \"%s\"", name);
}

static int64_t
duration(const char *option, const char *string)
{
	int64_t		ms;

	if (!parse_duration(string, &ms))
		usage_error("invalid duration \"%s\" for --%s", string, option);
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
take_option(int c, const char *name, const char *arg, Options *options)
{
	switch (c)
	{
		case 'd':
			options->dbname = arg;
			break;
		case 'h':
			options->host = arg;
			break;
		case 'p':
			options->port = arg;
			break;
		case 'U':
			options->user = arg;
			break;
		case OPT_TIMEOUT:
			options->timeout = positive_duration(name, arg);
			break;
		case OPT_TTL:
			options->ttl = positive_duration(name, arg);
			break;
		case OPT_WAIT:
			options->wait_given = true;
			options->wait = strcmp(arg, "forever") == 0 ? -1 :
				duration(name, arg);
			break;
		case OPT_VALUE:
			options->value = arg;
			break;
		case OPT_PRIORITY:
			options->priority = number("--priority", arg, 0, INT32_MAX);
			break;
		case OPT_CLEANUP:
			options->cleanup = duration(name, arg);
			break;
		case OPT_FORCE:
			options->force = true;
			break;
		case OPT_OWNER:
			if (*arg == '\0')
				usage_error("--owner must not be empty");
			options->owner = arg;
			break;
		case OPT_KILL_AFTER:
			options->kill_after = duration(name, arg);
			break;
		case OPT_ON_PREEMPT:
			options->on_preempt = strcmp(arg, "none") == 0 ? 0 :
				signal_number(arg);
			if (options->on_preempt < 0)
				usage_error("unknown signal \"%s\" for --%s", arg, name);
			break;
		case OPT_ONCE:
			options->once = true;
			break;
		case OPT_OBSERVE:
			options->observe = true;
			break;
		case OPT_REASON:
			options->reason = arg;
			break;
		case OPT_SORT:
			if (strcmp(arg, "key") != 0 && strcmp(arg, "remaining") != 0 &&
				strcmp(arg, "waiters") != 0 && strcmp(arg, "held") != 0)
				usage_error("invalid order \"%s\", must be key, remaining, waiters or held", arg);
			options->sort = arg;
			break;
		case OPT_WAITERS:
			options->waiters = true;
			break;
		case OPT_LIMIT:
			options->limit = number("--limit", arg, 1, INT32_MAX);
			break;
		case OPT_INTERVAL:
			options->interval = duration(name, arg);
			if (options->interval < 100)
				usage_error("--interval must be at least 100ms");
			break;
		case OPT_COUNT:
			options->count = number("--count", arg, 1, INT32_MAX);
			break;
		case OPT_UNTIL_FREE:
			options->until_free = true;
			break;
		case OPT_JSON:
			options->json = true;
			break;
		case OPT_QUIET:
			is_quiet = true;
			break;
	}
}

static bool
runs_command(CommandId id)
{
	return id == CMD_EXEC || id == CMD_ELECT;
}

static bool
takes_version(CommandId id)
{
	return id == CMD_REFRESH || id == CMD_RELEASE || id == CMD_CHECK;
}

static void
take_positional(CommandId id, char *arg, Options *options)
{
	if (options->key == NULL)
		options->key = arg;
	else if (takes_version(id) && options->version == 0)
		options->version = number("version", arg, 1, INT64_MAX);
	else
		usage_error("too many arguments, the first one is \"%s\"", arg);
}

/* What a command under "dlock exec" need not say: its own lock. */
static void
take_environment(CommandId id, Options *options)
{
	const char *key = getenv("DLOCK_KEY");
	const char *version = getenv("DLOCK_VERSION");

	if (!takes_version(id) || key == NULL || version == NULL)
		return;
	if (options->key == NULL)
		options->key = key;
	if (strcmp(options->key, key) == 0 && options->version == 0 &&
		options->owner == NULL)
		options->version = number("DLOCK_VERSION", version, 1, INT64_MAX);
}

static void
check_options(CommandId id, Options *options)
{
	if (options->key == NULL && id != CMD_LS && id != CMD_TOP)
		usage_error("no key given");
	if (options->key != NULL && options->key[0] == '\0')
		usage_error("the key must not be empty");
	if (takes_version(id) && options->version == 0 && options->owner == NULL)
		usage_error("no version given");
	if (runs_command(id) && !options->observe && options->command == NULL)
		usage_error("no command given");
	if (options->observe && options->command != NULL)
		usage_error("--observe runs no command");
	if (id == CMD_FORCE_RELEASE && options->reason == NULL)
		usage_error("no --reason given");

	/* what comes between SIGTERM and SIGKILL comes out of the TTL */
	if (runs_command(id) && options->kill_after >= 0 && options->ttl > 0 &&
		options->kill_after > options->ttl / 4)
		usage_error("--kill-after must not be more than a quarter of --ttl");
}

void
parse_options(CommandId id, int argc, char **argv, Options *options)
{
	options->timeout = -1;
	options->cleanup = -1;
	options->kill_after = -1;
	options->on_preempt = SIGTERM;
	options->interval = 2000;
	if (id == CMD_ELECT)
		options->wait = -1;

	opterr = 0;
	for (;;)
	{
		int			which = -1;
		int			place = optind;
		int			c = getopt_long(argc, argv, "-:d:h:p:U:", long_options,
									&which);
		const char *name = which >= 0 ? long_options[which].name : NULL;

		if (c == -1)
			break;
		if (c == 1)
		{
			/* in order: the second one of exec is where the command starts */
			if (runs_command(id) && options->key != NULL)
			{
				optind--;
				break;
			}
			take_positional(id, optarg, options);
			continue;
		}
		if (c == ':')
			usage_error("option \"%s\" needs an argument", argv[optind - 1]);
		if (c == OPT_HELP || (c == '?' && strcmp(argv[place], "-?") == 0))
		{
			show_help(id);
			exit(close_output(0));
		}
		if (c == '?')
			usage_error("unknown option \"%s\"", argv[place]);
		if (c > 255 && c != OPT_TIMEOUT && !option_allowed(id, name))
			usage_error("\"dlock %s\" has no option --%s", command_name(id), name);
		take_option(c, name, optarg, options);
	}
	for (; optind < argc; optind++)
	{
		if (runs_command(id) && options->key != NULL)
		{
			options->command = argv + optind;
			break;
		}
		take_positional(id, argv[optind], options);
	}
	take_environment(id, options);
	check_options(id, options);
}
