/*
 * help.c
 *	  The commands and their options: what --help shows, and which option
 *	  belongs to which command.
 */
#include "cli.h"

#include <string.h>

#define BIT(id) (1u << (id))
#define TAKES	(BIT(CMD_EXEC) | BIT(CMD_ELECT) | BIT(CMD_ACQUIRE))
#define RUNS	(BIT(CMD_EXEC) | BIT(CMD_ELECT))
#define NAMES	(BIT(CMD_REFRESH) | BIT(CMD_RELEASE) | BIT(CMD_CHECK))
#define ALL		(BIT(COMMANDS) - 1)

#define IN_EXEC	"\n" \
"Inside \"dlock exec\", KEY and VERSION default to those of its lock.\n"

#define KINDS	(BIT(CMD_EXEC) | BIT(CMD_ACQUIRE))

static const struct
{
	const char *name;
	const char *arguments;
	const char *summary;
	const char *text;
	const char *examples;
}			commands[COMMANDS] = {

	[CMD_EXEC] = {"exec", "KEY [OPTION]... [--] COMMAND [ARGUMENT]...",
		"run a command while holding a lock",
		"Takes the lock, runs COMMAND, renews the lock while COMMAND runs, and releases\n"
		"it afterwards.  COMMAND gets the fencing token in DLOCK_VERSION and the key in\n"
		"DLOCK_KEY (for the keys of --and in DLOCK_VERSION_2, DLOCK_KEY_2 and so on).\n"
		"Signals are passed on to it, and its exit code is returned.\n"
		"If the lock is lost or cannot be renewed, COMMAND and everything in its\n"
		"process group get SIGTERM and then SIGKILL, before the server can grant the\n"
		"lock to another client.\n"
		"Within the COMMAND of another \"dlock exec\" that holds the same KEY, runs under\n"
		"that lock.\n",
		"  dlock exec nightly --wait=10min -- ./report.sh\n"
	"  dlock exec tenant:7 --slots=3 --ttl=1min -- ./worker.sh\n"},
	[CMD_ELECT] = {"elect", "KEY [OPTION]... [--] COMMAND [ARGUMENT]...",
		"run a command while being the leader",
		"Waits to be elected, then runs COMMAND as \"dlock exec\" does.  If the leadership\n"
		"is lost, COMMAND is ended and the campaign starts again.  Ends when COMMAND\n"
		"ends, with its exit code.  Retries if the server cannot be reached.\n"
		"With --observe, follows the election without taking part.\n",
		"  dlock elect worker --value=\"$(hostname)\" -- ./worker.sh\n"
	"  dlock elect worker --observe\n"},
	[CMD_ACQUIRE] = {"acquire", "KEY [OPTION]...",
		"take a lock and print its version",
		"The lock belongs to no process.  It stays until it is released or its TTL\n"
		"ends.  Renew it with \"dlock refresh KEY VERSION\".\n",
		"  version=$(dlock acquire deploy --ttl=10min)\n"
	"  dlock acquire deploy --owner=build-7 --wait=1min --json\n"},
	[CMD_REFRESH] = {"refresh", "[KEY [VERSION]] [OPTION]...",
		"keep a lock for another TTL",
		"Prints the time at which the lock expires." IN_EXEC,
		"  dlock refresh deploy 17\n"
	"  dlock refresh deploy 17 --ttl=1h\n"},
	[CMD_RELEASE] = {"release", "[KEY [VERSION]] [OPTION]...",
		"release a lock",
		"Prints \"released\", \"not_held\" or \"held_by_other\"." IN_EXEC,
		"  dlock release deploy 17\n"
	"  dlock release deploy --owner=build-7\n"},
	[CMD_CHECK] = {"check", "[KEY [VERSION]] [OPTION]...",
		"check whether a lock is still held",
		"Prints \"held\", \"preempting\", \"not_held\" or \"held_by_other\"." IN_EXEC,
		"  dlock check deploy 17\n"
	"  dlock check deploy 17 && ./next-step.sh\n"},
	[CMD_HANDOVER] = {"handover", "[KEY [VERSION]] --to OWNER [OPTION]...",
		"give a lock to another owner",
		"Prints the new version, which belongs to OWNER.  The old version is fenced off,\n"
		"and nobody who waits for KEY comes between.  OWNER renews the lock with\n"
		"\"dlock refresh\", or runs a command under it with \"dlock exec --adopt\"." IN_EXEC,
		"  dlock handover deploy 17 --to=green\n"
	"  dlock exec deploy --owner=green --adopt -- ./serve.sh\n"},
	[CMD_INFO] = {"info", "KEY [OPTION]...",
		"show everything about one key",
		"Shows who holds it, until when, and who waits for it; or which open transaction\n"
		"keeps it busy.\n",
		"  dlock info deploy\n"
	"  dlock info deploy --json\n"},
	[CMD_LS] = {"ls", "[PATTERN] [OPTION]...",
		"list the locks that are held or waited for",
		"PATTERN is a shell pattern: \"*\" matches any text, \"?\" one character.\n"
		"\"dlock list\" is the same.\n",
		"  dlock ls 'tenant:*'\n"
	"  dlock ls --sort=waiters --limit=20\n"},
	[CMD_TOP] = {"top", "[PATTERN] [OPTION]...",
		"show rates, waits, hot keys and the locks, live",
		"q quits, ? shows the other keys: / filters, c shows the hot keys, s changes the\n"
		"order, + and - change the interval, arrows and pages scroll.\n"
		"Without a terminal, one frame is printed, with all numbers since the statistics\n"
		"were reset.\n",
		"  dlock top\n"
	"  dlock top 'tenant:*' --once\n"},
	[CMD_WATCH] = {"watch", "KEY [OPTION]...",
		"print a line whenever a key changes hands",
		"The first line shows the current state.\n",
		"  dlock watch deploy\n"
	"  dlock watch deploy --until-free && ./deploy.sh\n"},
	[CMD_FORCE_RELEASE] = {"force-release", "KEY [VERSION] --reason TEXT [OPTION]...",
		"take a lock away from its holder",
		"Prints the version that was taken away.  If several hold KEY, all of them lose\n"
		"it, or only the one with that VERSION.  Needs the privilege to execute\n"
		"dlock_force_release.  The server logs it.\n",
		"  dlock force-release deploy --reason='host is gone'\n"
	"  dlock force-release tenant:7 17 --reason='hangs'\n"},
	[CMD_STATS] = {"stats", "[OPTION]...",
		"show what has happened to the locks of the database",
		"Shows the counters since the server was started or they were reset, how long\n"
		"waits took, and the keys that are contended most.\n",
		"  dlock stats --limit=5\n"
	"  dlock stats --json\n"},
	[CMD_HEALTH] = {"health", "[OPTION]...",
		"check whether grants would survive a failover",
		"Shows dlock_health().  The exit code is that of a Nagios plugin: 0 ok,\n"
		"1 warning, 2 critical, 3 unknown, and the first line is the verdict.\n",
		"  dlock health\n"
	"  dlock health --json --timeout=5s\n"},
	[CMD_SHARD] = {"shard", "list | move SHARDS FROM TO [OPTION]...",
		"show which cluster serves which shards, and move them",
		"Connect to the database with the extension dlock_router.  \"list\" shows its\n"
		"clusters, their shards, and whether they serve these.  \"move\" moves SHARDS\n"
		"(17, or 0-511,1000) from one cluster to another, as the owner of the\n"
		"extensions.  FROM stops serving them, its grants end, then TO serves them, and\n"
		"the routers learn it.  Two clusters never serve the same shard.  If it is\n"
		"interrupted, run it again.\n",
		"  dlock shard list -d router\n"
	"  dlock shard move 0-511 east west -d router\n"},
};

typedef struct
{
	unsigned int where;
	const char *name;
	const char *text;
} OptionHelp;

static const OptionHelp option_help[] = {
	{TAKES, "ttl", "--ttl=DURATION         how long the lock lasts unless it is renewed (default:\n"
	"                         the server's dlock.default_ttl, 20s)"},
	{BIT(CMD_REFRESH) | BIT(CMD_HANDOVER), "ttl", "--ttl=DURATION         how long the lock lasts from now on (default: its own\n"
	"                         TTL)"},
	{BIT(CMD_HANDOVER), "to", "--to=OWNER             who gets the lock: the name of its next request"},
	{BIT(CMD_EXEC) | BIT(CMD_ACQUIRE), "wait", "--wait=DURATION        how long to queue for the lock, or \"forever\"\n"
	"                         (default: 0)"},
	{BIT(CMD_ELECT), "wait", "--wait=DURATION        how long to wait to be elected (default: forever)"},
	{KINDS, "slots", "--slots=NUMBER         take one of NUMBER places, so that at most NUMBER\n"
	"                         hold KEY at once (default: 1)"},
	{KINDS, "shared", "--shared               share KEY with any number of others that use --shared"},
	{KINDS, "and", "--and=KEY              another key; all are taken or none (may be repeated)"},
	{KINDS, "at-least", "--at-least=DURATION    keep KEY busy for so long, even if it is released\n"
	"                         earlier"},
	{TAKES, "delay", "--delay=DURATION       keep KEY busy for so long after it was lost"},
	{KINDS, "lazy", "--lazy                 past its TTL, keep it until another client wants it"},
	{TAKES, "value", "--value=TEXT           text that is stored with the lock for others to see"},
	{TAKES, "priority", "--priority=NUMBER      ask holders of a lower priority to yield (default: 0)"},
	{RUNS, "cleanup", "--cleanup=DURATION     time to yield when asked to (default: 5s)"},
	{BIT(CMD_ACQUIRE), "cleanup", "--cleanup=DURATION     time to yield when asked to (default: 0)"},
	{TAKES, "force", "--force                take the lock if the holder does not yield in time"},
	{TAKES, "owner", "--owner=NAME           name of the request (default: host:pid:random)"},
	{TAKES, "adopt", "--adopt                take over the lock that this owner has already;\n"
	"                         without it, that lock is busy"},
	{NAMES, "owner", "--owner=NAME           the owner that the lock was taken with; VERSION can\n"
	"                         then be left out"},
	{RUNS, "kill-after", "--kill-after=DURATION  time between SIGTERM and SIGKILL (default: 5s, at most\n"
	"                         a quarter of the TTL)"},
	{RUNS, "on-preempt", "--on-preempt=SIGNAL    signal to send when asked to yield, or \"none\"\n"
	"                         (default: TERM)"},
	{RUNS, "fence", "--fence                commit what the command writes only while KEY is held"},
	{RUNS, "max-hold", "--max-hold=DURATION    end the command before it has held KEY for longer"},
	{BIT(CMD_EXEC), "rate", "--rate=NUMBER/TIME     no lock: run at most NUMBER times in any TIME (10/min)"},
	{BIT(CMD_ELECT), "once", "--once                 exit when the leadership is lost"},
	{BIT(CMD_ELECT), "observe", "--observe              follow the election without taking part"},
	{BIT(CMD_FORCE_RELEASE), "reason", "--reason=TEXT          reason, for the log and the event"},
	{BIT(CMD_LS) | BIT(CMD_TOP), "sort", "--sort=ORDER           key, remaining, waiters, held, for top also busy\n"
	"                         (default: key, for top waiters)"},
	{BIT(CMD_LS), "holders", "--holders              list the holders, not the keys: a key may have several"},
	{BIT(CMD_LS), "waiters", "--waiters              list the waiters instead of the keys"},
	{BIT(CMD_LS) | BIT(CMD_TOP) | BIT(CMD_STATS), "limit", "--limit=NUMBER         maximum number of rows"},
	{BIT(CMD_TOP), "interval", "--interval=DURATION    time between refreshes of the screen (default: 2s)"},
	{BIT(CMD_TOP), "once", "--once                 print one frame and exit"},
	{BIT(CMD_WATCH) | BIT(CMD_ELECT), "count", "--count=NUMBER         exit after that many lines"},
	{BIT(CMD_WATCH), "until-free", "--until-free           exit when the key is free"},
	{ALL & ~BIT(CMD_EXEC), "json", "--json                 print JSON"},
	{BIT(CMD_SHARD), "router", "--router=CONNINFO      another router that has to learn of the move (may be\n"
	"                         repeated)"},
	{BIT(CMD_SHARD), "wait", "--wait=DURATION        how long to wait for the grants to end (default:\n"
	"                         forever)"},
	{BIT(CMD_SHARD), "force", "--force                end the grants that are left at once"},
	{BIT(CMD_SHARD), "asynchronous", "--asynchronous         although commits of the clusters do not wait for their\n"
	"                         standbys"},
	{TAKES | BIT(CMD_SHARD), "quiet", "--quiet                print only errors; nothing while it waits"},
};

static const char connection_help[] =
"Connection, as in psql (also PGHOST, PGPORT, PGUSER, PGDATABASE...):\n"
"  -d, --dbname=CONNINFO      database name, connection string or URI\n"
"  -h, --host=HOST            server host or socket directory\n"
"  -p, --port=PORT            server port\n"
"  -U, --username=NAME        role\n"
"      --schema=NAME          schema of the portable edition, if it was installed\n"
"                             without an extension\n"
"      --timeout=DURATION     how long the servers may be silent or unreachable\n"
"                             before dlock gives up (default: 10s)\n";

static const char exit_help[] =
"Exit codes:\n"
"    0  done: granted, renewed, released, held; info: the key is busy\n"
"   64  invalid command line\n"
"   69  unreachable: no server, or no answer in time\n"
"   70  the server reported an error\n"
"   71  system error: no memory, no processes, output cannot be written\n"
"   75  busy: another client has the lock, or did not yield\n"
"   76  lost: the lock is not ours, or was lost or yielded while the command\n"
"       ran; info, force-release: the key is free\n"
"   77  denied: wrong password, no such role or database, no privilege\n"
"   78  not ready: the extension is missing or not preloaded\n"
"  126  the command cannot be executed\n"
"  127  the command was not found\n"
"128+n  the command was ended by signal n\n"
"In all other cases, exec and elect return the exit code of the command.\n"
"Those of health are 0 ok, 1 warning, 2 critical, 3 unknown.\n";

const char *
command_name(CommandId id)
{
	return commands[id].name;
}

bool
option_allowed(CommandId id, const char *name)
{
	size_t		i;

	for (i = 0; i < sizeof(option_help) / sizeof(option_help[0]); i++)
		if (strcmp(option_help[i].name, name) == 0 &&
			(option_help[i].where & BIT(id)) != 0)
			return true;
	return false;
}

/* What there is: all that somebody sees who types nothing but "dlock". */
void
text_summary(Text *out)
{
	size_t		i;

	text_add(out, "dlock takes, keeps and shows the locks of the PostgreSQL extension dlock.\n\n"
			 "Usage:\n  dlock COMMAND [OPTION]... [ARGUMENT]...\n\nCommands:\n");
	for (i = 0; i < COMMANDS; i++)
		text_format(out, "  %-14s %s\n", commands[i].name, commands[i].summary);
	text_add(out, "\n\"dlock COMMAND --help\" shows the options of a command, and examples.\n");
}

/* How many characters have to be inserted, deleted or replaced; at most MAX_WORD are looked at. */
#define MAX_WORD 31

static int
distance(const char *a, const char *b)
{
	int			row[MAX_WORD + 1];
	int			n = (int) strlen(b) < MAX_WORD ? (int) strlen(b) : MAX_WORD;
	int			i;
	int			j;

	for (j = 0; j <= n; j++)
		row[j] = j;
	for (i = 0; i < MAX_WORD && a[i] != '\0'; i++)
	{
		int			diagonal = row[0]++;

		for (j = 1; j <= n; j++)
		{
			int			best = diagonal + (a[i] != b[j - 1]);

			diagonal = row[j];
			if (row[j - 1] + 1 < best)
				best = row[j - 1] + 1;
			if (diagonal + 1 < best)
				best = diagonal + 1;
			row[j] = best;
		}
	}
	return row[n];
}

/* Does *best, at *least from the word, become that name? */
static void
prefer(const char *word, const char *name, const char **best, int *least)
{
	int			d = distance(word, name);

	/* what is typed so far counts as it is */
	if (strlen(word) >= 2 && strncmp(word, name, strlen(word)) == 0)
		d = 0;
	if (d < *least)
	{
		*best = name;
		*least = d;
	}
}

/* The command that was probably meant; NULL: none is close. */
const char *
similar_command(const char *word)
{
	const char *best = NULL;
	int			least = strlen(word) < 4 ? 2 : 3;
	int			i;

	for (i = 0; i < COMMANDS; i++)
		prefer(word, commands[i].name, &best, &least);
	return best;
}

/* The same for an option of that command, without its dashes. */
const char *
similar_option(CommandId id, const char *word)
{
	static const char *const common[] = {"dbname", "host", "port", "username", "schema", "timeout", "help"};
	const char *best = NULL;
	int			least = strlen(word) < 4 ? 2 : 3;
	size_t		i;

	for (i = 0; i < sizeof(option_help) / sizeof(option_help[0]); i++)
		if ((option_help[i].where & BIT(id)) != 0)
			prefer(word, option_help[i].name, &best, &least);
	for (i = 0; i < sizeof(common) / sizeof(common[0]); i++)
		prefer(word, common[i], &best, &least);
	return best;
}

void
show_help(CommandId id)
{
	Text		out = {0};
	size_t		i;

	if (id < COMMANDS)
	{
		text_format(&out, "dlock %s: %s\n\nUsage:\n  dlock %s %s\n\n%s\nOptions:\n",
					commands[id].name, commands[id].summary,
					commands[id].name, commands[id].arguments, commands[id].text);
		for (i = 0; i < sizeof(option_help) / sizeof(option_help[0]); i++)
			if ((option_help[i].where & BIT(id)) != 0)
				text_format(&out, "  %s\n", option_help[i].text);
		text_format(&out, "  -?, --help             show this help\n\nExamples:\n%s\n"
					"\"dlock --help\" shows how to connect, and the exit codes.\n",
					commands[id].examples);
	}
	else
	{
		text_summary(&out);
		text_format(&out, "Durations are 500ms, 30s, 5min, 2h, 1d, or a number of seconds.\n\n%s\n%s",
					connection_help, exit_help);
	}
	finish_output(&out);
}
