/*
 * shard.c
 *	  shard: which cluster serves which shards, and moving them.
 *
 * A move never lets two clusters serve a shard.  The source stops serving it, and
 * that is durable, before anything else happens.  Then what it has granted ends.
 * Only then does the target serve it.  In between nobody does, and an acquire is
 * refused (LK002).
 *
 * Every step can be repeated.  So a move that was interrupted, wherever that was,
 * is run again from its beginning, and finds most of its steps done.  Two moves
 * that touch the same cluster exclude each other by an advisory lock in the
 * sessions that also change what the clusters serve: if the session is lost, so
 * is the means to continue.
 *
 * The search_path of these sessions is pg_catalog (cluster.c).  The schema of the
 * extension may contain functions of other roles, so calls give every argument by
 * its name and with its exact type, as in the sql.c of libdlock.
 */
#include "shard/cluster.h"
#include "base/util.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SHARDS		1024

/* how often to look whether the grants have ended */
#define LOOK_US		250000
#define TELL_MS		5000

typedef struct
{
	Server	   *routers;
	int			router_count;
	Server		from;
	Server		to;
	char	   *shards;			/* all that are to be moved, as a multirange */
	char	   *rest;			/* those that the target does not serve yet */
} Move;

/*
 * The command line
 */

static int
shard_number(const char *string, char **end)
{
	long		value = strtol(string, end, 10);

	if (*end == string || *string < '0' || *string > '9' || value >= SHARDS)
		usage_error("invalid shards \"%s\", must be numbers from 0 to %d such as 17 or 0-511,1000",
					string, SHARDS - 1);
	return (int) value;
}

/* From "17,20-31" to "{[17,18),[20,32)}". */
static char *
parse_shards(const char *string)
{
	Text		ranges = {0};
	const char *at = string;

	text_add(&ranges, "{");
	for (;;)
	{
		char	   *end;
		int			first = shard_number(at, &end);
		int			last = *end == '-' ? shard_number(end + 1, &end) : first;

		if (last < first || (*end != ',' && *end != '\0'))
			usage_error("invalid shards \"%s\", must be numbers from 0 to %d such as 17 or 0-511,1000",
						string, SHARDS - 1);
		text_format(&ranges, "[%d,%d)", first, last + 1);
		if (*end == '\0')
			break;
		text_add(&ranges, ",");
		at = end + 1;
	}
	text_add(&ranges, "}");
	return text_take(&ranges);
}

/* From "{[17,18),[20,32)}" to "17, 20-31". */
static void
text_shards(Text *to, const char *ranges)
{
	const char *at = ranges;
	const char *separator = "";

	while ((at = strchr(at, '[')) != NULL)
	{
		int			first = 0;
		int			end = 0;

		if (sscanf(at, "[%d,%d)", &first, &end) != 2)
			break;
		text_format(to, "%s%d", separator, first);
		if (end - 1 > first)
			text_format(to, "-%d", end - 1);
		separator = ", ";
		at++;
	}
	if (*separator == '\0')
		text_add(to, "none");
}

static const char *
shown_shards(const char *ranges)
{
	static Text text = {0};

	text_clear(&text);
	text_shards(&text, ranges);
	return text.data;
}

/* The one that all commands connect to, and those of --router. */
static void
open_routers(const Options *options, Server **routers, int *count)
{
	Text		conninfo = {0};
	int			i;

	*count = 1 + options->router_count;
	*routers = allocate((size_t) *count * sizeof(Server));
	make_conninfo(options, &conninfo);
	server_open(&(*routers)[0], "router", NULL, conninfo.data, options);
	for (i = 0; i < options->router_count; i++)
		server_open(&(*routers)[i + 1], "router", options->routers[i], options->routers[i], options);
	text_free(&conninfo);
}

/*
 * Moving: before anything changes
 */

static void
open_cluster(Move *move, Server *cluster, const char *name, const Options *options)
{
	char	   *connection = server_get(&move->routers[0],
										"SELECT c.connection FROM dlock_router.clusters c WHERE c.name = $1::text", name, NULL);

	if (connection == NULL)
	{
		error("the router has no cluster \"%s\"", name);
		hint("\"dlock shard list\" shows them.");
		exit(EXIT_USAGE);
	}
	server_open(cluster, "cluster", name, connection, options);
	free(connection);
}

/* No router may send these shards anywhere else. */
static void
check_maps(Move *move)
{
	int			i;

	for (i = 0; i < move->router_count; i++)
	{
		Server	   *router = &move->routers[i];
		Text		both = {0};
		char	   *elsewhere;

		text_format(&both, "%s\n%s", move->from.name, move->to.name);
		elsewhere = server_get(router,
							   "SELECT range_agg(c.shards * $1::int4multirange)::text FROM dlock_router.clusters c"
							   " WHERE c.shards && $1::int4multirange"
							   " AND c.name <> ALL (string_to_array($2::text, chr(10)))",
							   move->shards, both.data);
		if (elsewhere != NULL && *elsewhere != '\0')
		{
			error("router \"%s\" sends shards %s to other clusters than \"%s\" and \"%s\"",
				  router->name, shown_shards(elsewhere), move->from.name, move->to.name);
			exit(EXIT_USAGE);
		}
		free(elsewhere);
		text_free(&both);
	}
}

static void
exclude_others(Server *cluster)
{
	/* a number that means nothing to anybody else: "dlock" and "move" */
	char	   *locked = server_get(cluster,
									"SELECT pg_try_advisory_lock(1684828003, 1836021349)", NULL, NULL);

	if (strcmp(locked, "t") != 0)
	{
		error("another move is under way on cluster \"%s\"", cluster->name);
		exit(EXIT_BUSY);
	}
	free(locked);
}

/*
 * A standby that has not got the change and is promoted would serve the shards
 * again.
 */
static void
check_standbys(Server *cluster, const Options *options)
{
	char	   *unsafe;

	if (options->asynchronous)
		return;
	unsafe = server_get(cluster,
						"SELECT current_setting('synchronous_standby_names') = ''"
						" AND EXISTS (SELECT FROM pg_stat_replication)", NULL, NULL);
	if (strcmp(unsafe, "t") == 0)
	{
		error("cluster \"%s\" has standbys that its commits do not wait for", cluster->name);
		detail("If one of them is promoted before it has got the change, two clusters serve the same shards.");
		hint("Set synchronous_standby_names, or use --asynchronous if none of them is ever promoted.");
		exit(EXIT_NOT_READY);
	}
	free(unsafe);
}

static void
check_served(Move *move)
{
	char	   *from = server_get(&move->from, "SELECT s.shards * $1::int4multirange FROM @.dlock_served s",
								  move->shards, NULL);
	char	   *both = server_get(&move->to, "SELECT s.shards * $1::int4multirange FROM @.dlock_served s",
								  from, NULL);

	if (strcmp(both, "{}") != 0)
	{
		error("clusters \"%s\" and \"%s\" both serve shards %s",
			  move->from.name, move->to.name, shown_shards(both));
		hint("Call dlock_serve on the one that must not serve them. A new cluster serves all shards until dlock_serve('{}').");
		exit(EXIT_NOT_READY);
	}
	free(from);
	free(both);
	move->rest = server_get(&move->to, "SELECT $1::int4multirange - s.shards FROM @.dlock_served s",
							move->shards, NULL);
}

/*
 * Moving: the steps
 */

/* Others may change what is served at the same time, by hand. */
static void
serve(Server *cluster, const char *sql, const char *shards)
{
	server_do(cluster, "BEGIN", NULL);
	server_do(cluster, "LOCK TABLE dlock.served IN SHARE ROW EXCLUSIVE MODE", NULL);
	server_do(cluster, sql, shards);
	server_do(cluster, "COMMIT", NULL);
}

/*
 * The row is written even if nothing changes: an earlier run may have ended before
 * a standby confirmed it.
 */
static void
stop_serving(Move *move)
{
	serve(&move->from, "SELECT @.dlock_serve(shards => s.shards - $1::int4multirange) FROM @.dlock_served s", move->rest);
	notice("cluster \"%s\" has stopped serving shards %s", move->from.name, shown_shards(move->rest));

	/* transactions that had decided before may still commit a grant */
	server_do(&move->from, "SELECT @.dlock_settle()", NULL);
}

/* How many grants there still are; *longest is until when, in milliseconds. */
static int64_t
count_grants(Move *move, int64_t *longest)
{
	PGresult   *result = server_ask(&move->from,
									"SELECT count(*), coalesce(extract(epoch FROM max(l.remaining)) * 1000, 0)::int8"
									" FROM @.dlock_locks l WHERE $1::int4multirange @> @.dlock_shard(key => l.key)",
									move->rest, NULL);
	int64_t		count = strtoll(PQgetvalue(result, 0, 0), NULL, 10);

	*longest = strtoll(PQgetvalue(result, 0, 1), NULL, 10);
	PQclear(result);
	return count;
}

/*
 * Wait until nothing of these shards is held.  A lapsed grant is its holder's only
 * until somebody wants the key, and we do.
 */
static void
drain(Move *move, const Options *options)
{
	int64_t		until = options->wait < 0 ? INT64_MAX : dlock_now() + options->wait;
	int64_t		tell_at = 0;
	int64_t		longest;
	int64_t		count;

	for (;;)
	{
		server_do(&move->from, options->force ?
				  "SELECT count(@.dlock_force_release(key => l.key, reason => 'its shard is moved'::text, version => l.version)) FROM @.dlock_locks l"
				  " WHERE l.version IS NOT NULL AND $1::int4multirange @> @.dlock_shard(key => l.key)" :
				  "SELECT count(@.dlock_force_release(key => l.key, reason => 'its shard is moved'::text, version => l.version)) FROM @.dlock_locks l"
				  " WHERE l.state = 'lapsed' AND $1::int4multirange @> @.dlock_shard(key => l.key)",
				  move->rest);
		count = count_grants(move, &longest);
		if (count == 0)
			return;
		if (dlock_now() >= until)
		{
			error("%lld grants of shards %s are left on cluster \"%s\"", (long long) count,
				  shown_shards(move->rest), move->from.name);
			hint("Nobody serves these shards now. Run the same command again, with --force to end the grants, "
				 "or move the shards back from \"%s\" to \"%s\".", move->to.name, move->from.name);
			exit(EXIT_BUSY);
		}
		if (dlock_now() >= tell_at)
		{
			Text		time = {0};

			text_duration(&time, longest);
			notice("waiting for %lld grants on cluster \"%s\"; the last expires in %s unless it is renewed",
				   (long long) count, move->from.name, time.data);
			text_free(&time);
			tell_at = dlock_now() + TELL_MS;
		}
		usleep(LOOK_US);
	}
}

/*
 * Expired rows are still there.  After a restart of the source, or on a standby
 * that is promoted, they would be held for one more TTL, next to the grants of
 * the target.  DELETE waits for transactions that have fenced them.
 */
static void
clear(Move *move)
{
	server_do(&move->from, "DELETE FROM dlock.locks l WHERE $1::int4multirange @> @.dlock_shard(key => l.key)", move->rest);
}

static void
start_serving(Move *move)
{
	/* the highest that the source may have drawn */
	char	   *version = server_get(&move->from, "SELECT @.dlock_advance(version => 0::int8)", NULL, NULL);

	server_do(&move->to, "SELECT @.dlock_advance(version => $1::int8)", version);
	serve(&move->to, "SELECT @.dlock_serve(shards => s.shards + $1::int4multirange) FROM @.dlock_served s", move->rest);
	notice("cluster \"%s\" serves shards %s, with versions above %s", move->to.name,
		   shown_shards(move->rest), version);
	free(version);
}

static void
tell_router(Move *move, Server *router)
{
	char	   *same = server_get(router,
								  "SELECT $1::int4multirange <@ c.shards FROM dlock_router.clusters c WHERE c.name = $2::text",
								  move->shards, move->to.name);
	Text		names = {0};

	if (same == NULL || strcmp(same, "t") != 0)
	{
		text_format(&names, "%s\n%s", move->from.name, move->to.name);
		server_do(router, "BEGIN", NULL);
		PQclear(server_ask(router,
						   "UPDATE dlock_router.clusters c SET shards = CASE WHEN c.name = split_part($2::text, chr(10), 2)"
						   " THEN c.shards + $1::int4multirange ELSE c.shards - $1::int4multirange END"
						   " WHERE c.name = ANY (string_to_array($2::text, chr(10)))",
						   move->shards, names.data));
		server_do(router, "COMMIT", NULL);
	}
	notice("router \"%s\" sends shards %s to cluster \"%s\"", router->name,
		   shown_shards(move->shards), move->to.name);
	text_free(&names);
	free(same);
}

static int
run_move(const Options *options)
{
	Move		move = {0};
	int			i;

	if (options->word_count != 4)
		usage_error("\"dlock shard move\" needs shards and two clusters");
	if (options->json)
		usage_error("\"dlock shard move\" has no option --json");
	if (strcmp(options->words[2], options->words[3]) == 0)
		usage_error("the clusters are the same");
	move.shards = parse_shards(options->words[1]);

	open_routers(options, &move.routers, &move.router_count);
	open_cluster(&move, &move.from, options->words[2], options);
	open_cluster(&move, &move.to, options->words[3], options);
	check_maps(&move);
	exclude_others(&move.from);
	exclude_others(&move.to);
	check_served(&move);
	if (strcmp(move.rest, "{}") != 0)
	{
		check_standbys(&move.from, options);
		check_standbys(&move.to, options);
		stop_serving(&move);
		drain(&move, options);
		clear(&move);
		start_serving(&move);
	}
	for (i = 0; i < move.router_count; i++)
		tell_router(&move, &move.routers[i]);

	for (i = 0; i < move.router_count; i++)
		server_close(&move.routers[i]);
	server_close(&move.from);
	server_close(&move.to);
	free(move.routers);
	free(move.shards);
	free(move.rest);
	return 0;
}

/*
 * Listing: a row for each cluster of each router
 */

static const char list_sql[] =
"SELECT c.name, c.shards, s.served, (SELECT count(*) FROM dlock_router.clusters),"
" (SELECT coalesce(sum(upper(r) - lower(r)), 0) FROM unnest(c.shards) r)"
" FROM dlock_router.clusters c JOIN dlock_router.partitions() p ON p.cluster = c.name,"
" LATERAL (SELECT dlock_router.served_if_there(p.partition)) s(served) ORDER BY c.name";

static const char *
list_state(const PGresult *rows, int row)
{
	if (PQgetisnull(rows, row, 2))
		return "no answer";
	return strcmp(PQgetvalue(rows, row, 1), PQgetvalue(rows, row, 2)) == 0 ? "ok" : "differs";
}

static void
add_list(Text *out, Server *router, PGresult *rows)
{
	static const Column columns[] = {
		{"CLUSTER", false, 8, 0},
		{"SHARDS", true, 0, 1},
		{"STATE", false, 0, 2},
		{"WHICH", false, 12, 3},
		{"IT SERVES", false, 12, 4},
	};
	Table	   *table = table_new(columns, 5);
	int			row;

	for (row = 0; row < PQntuples(rows); row++)
	{
		const char *state = list_state(rows, row);
		bool		good = strcmp(state, "ok") == 0;

		table_cell(table, CYAN, PQgetvalue(rows, row, 0));
		table_number(table, PLAIN, strtoll(PQgetvalue(rows, row, 4), NULL, 10));
		table_cell(table, good ? GREEN : RED, state);
		table_cell(table, PLAIN, shown_shards(PQgetvalue(rows, row, 1)));
		table_cell(table, PLAIN, good || PQgetisnull(rows, row, 2) ? "" :
				   shown_shards(PQgetvalue(rows, row, 2)));
	}
	table_text(table, out, terminal_width(), NULL, colours_on(stdout));
	table_free(table);
}

static void
add_json(Text *json, Server *router, PGresult *rows)
{
	int			row;

	for (row = 0; row < PQntuples(rows); row++)
	{
		json_open(json, NULL, '{');
		json_string(json, "router", router->name);
		json_string(json, "cluster", PQgetvalue(rows, row, 0));
		json_string(json, "shards", PQgetvalue(rows, row, 1));
		if (PQgetisnull(rows, row, 2))
			json_null(json, "served");
		else
			json_string(json, "served", PQgetvalue(rows, row, 2));
		json_string(json, "state", list_state(rows, row));
		json_close(json, '}');
	}
}

static int
run_list(const Options *options)
{
	Server	   *routers;
	int			count;
	int			code = 0;
	Text		out = {0};
	int			i;
	int			row;

	if (options->word_count != 1)
		usage_error("too many arguments, the first one is \"%s\"", options->words[1]);
	open_routers(options, &routers, &count);
	if (options->json)
		json_open(&out, NULL, '[');
	for (i = 0; i < count; i++)
	{
		PGresult   *rows = server_ask(&routers[i], list_sql, NULL, NULL);

		if (options->json)
			add_json(&out, &routers[i], rows);
		else
		{
			if (count > 1)
				text_format(&out, "%srouter \"%s\"\n", i > 0 ? "\n" : "", routers[i].name);
			add_list(&out, &routers[i], rows);
		}
		for (row = 0; row < PQntuples(rows); row++)
			if (strcmp(list_state(rows, row), "ok") != 0)
				code = EXIT_BUSY;
		PQclear(rows);
		server_close(&routers[i]);
	}
	if (options->json)
	{
		json_close(&out, ']');
		text_add(&out, "\n");
	}
	finish_output(&out);
	free(routers);
	return code;
}

int
run_shard(const Options *options)
{
	if (options->word_count > 0 && strcmp(options->words[0], "list") == 0)
		return run_list(options);
	if (options->word_count > 0 && strcmp(options->words[0], "move") == 0)
		return run_move(options);
	usage_error("\"dlock shard\" is followed by \"list\" or \"move\"");
}
