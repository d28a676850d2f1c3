/*-------------------------------------------------------------------------
 *
 * kinds.c
 *	  The part of a torture client that uses all kinds of locks, in SQL:
 *	  readers, semaphores whose number of places changes, exclusive locks that
 *	  become shared and the other way round, locks that cool, lazy ones, and
 *	  groups of keys.
 *
 * Some requests are made in a transaction that stays open for a while, and some
 * of these transactions are rolled back.
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "history.h"
#include "kinds.h"
#include "sql.h"

#define READER 0
#define EXCLUSIVE 1
#define HELD 4
#define NUMBER_SIZE 24

/* A grant that we have, as far as we know. */
typedef struct Held
{
	bool		used;
	char		key[KEY_SIZE];
	char		owner[OWNER_SIZE];
	int64_t		version;
	int64_t		until;
	int			slots;
	int			ttl;
} Held;

typedef struct Request
{
	const char *key;
	const char *owner;
	int			ttl;
	int			wait;
	int			slots;
	int			at_least;
	int			delay;
	bool		lazy;
} Request;

typedef enum Answer
{
	ANSWER_GRANTED,
	ANSWER_BUSY,
	ANSWER_ERROR,
	ANSWER_UNKNOWN
} Answer;

static Sql	sql = {.name = "kinds"};
static Held held[HELD];
static char sqlstate[6];

static void
call_acquire(long number, const Request *request, long with)
{
	char		group[32] = "";

	if (with != 0)
		snprintf(group, sizeof(group), " with=%ld", with);
	history(now_us(), "call %d %ld acquire key=%s owner=%s ttl=%d wait=%d slots=%d at_least=%d delay=%d lazy=%d%s",
			client, number, request->key, request->owner, request->ttl, request->wait,
			request->slots, request->at_least, request->delay, request->lazy, group);
}

static void
done_acquire(long number, Answer answer, int64_t version)
{
	switch (answer)
	{
		case ANSWER_GRANTED:
			history(now_us(), "done %d %ld acquire granted version=%lld", client, number,
					(long long) version);
			break;
		case ANSWER_BUSY:
			history(now_us(), "done %d %ld acquire busy", client, number);
			break;
		case ANSWER_ERROR:
			history(now_us(), "done %d %ld acquire error state=%s", client, number, sqlstate);
			break;
		case ANSWER_UNKNOWN:
			history(now_us(), "done %d %ld acquire unknown", client, number);
			break;
	}
}

/*
 * What the answer to a statement says that was a transaction of its own.  If the
 * wait for the standby was cancelled, there is a warning.
 */
static Answer
answer_of(const PGresult *result)
{
	if (result == NULL || sql.conn == NULL || PQstatus(sql.conn) != CONNECTION_OK || sql.warned)
		return ANSWER_UNKNOWN;
	if (!sql_good(result, sqlstate))
		return ANSWER_ERROR;
	return PQntuples(result) == 1 && !PQgetisnull(result, 0, 0) ? ANSWER_GRANTED : ANSWER_BUSY;
}

/* A statement without a result.  If it fails, it had no effect. */
static bool
command(const char *text)
{
	PGresult   *result = sql.conn != NULL ? sql_ask(&sql, text, 0, NULL, 0) : NULL;
	bool		done = sql_good(result, sqlstate);

	PQclear(result);
	return done;
}

/* The end of a transaction that has got a grant. */
static Answer
finish(bool commits)
{
	PGresult   *result;
	Answer		answer;

	poll(NULL, 0, below(40));
	if (!commits)
	{
		(void) command("ROLLBACK");
		snprintf(sqlstate, sizeof(sqlstate), "40000");
		return ANSWER_ERROR;
	}
	sql.warned = false;
	result = sql_ask(&sql, "COMMIT", 0, NULL, 0);
	answer = answer_of(result);
	/* it returns no row */
	if (answer == ANSWER_BUSY)
		answer = ANSWER_GRANTED;
	PQclear(result);
	return answer;
}

static Answer
ask_acquire(const Request *request, bool in_transaction, int64_t *version)
{
	char		ttl[NUMBER_SIZE];
	char		wait[NUMBER_SIZE];
	char		slots[NUMBER_SIZE];
	char		at_least[NUMBER_SIZE];
	char		delay[NUMBER_SIZE];
	const char *params[] = {request->key, ttl, request->owner, wait,
		request->slots == READER ? NULL : slots, at_least, delay,
	request->lazy ? "true" : "false"};
	PGresult   *result;
	Answer		answer;

	snprintf(ttl, sizeof(ttl), "%dms", request->ttl);
	snprintf(wait, sizeof(wait), "%dms", request->wait);
	snprintf(slots, sizeof(slots), "%d", request->slots);
	snprintf(at_least, sizeof(at_least), "%dms", request->at_least);
	snprintf(delay, sizeof(delay), "%dms", request->delay);

	snprintf(sqlstate, sizeof(sqlstate), "08001");
	if (!sql_connect(&sql) || (in_transaction && !command("BEGIN")))
		return ANSWER_ERROR;
	sql.warned = false;
	result = sql_ask(&sql,
					 "SELECT dlock_acquire($1::text, $2::interval, owner => $3::text, wait => $4::interval,"
					 " slots => $5::int4, at_least => $6::interval, delay => $7::interval, lazy => $8::bool)",
					 8, params, request->wait);
	answer = answer_of(result);
	if (answer == ANSWER_GRANTED)
		*version = strtoll(PQgetvalue(result, 0, 0), NULL, 10);
	PQclear(result);
	if (!in_transaction)
		return answer;

	if (answer == ANSWER_GRANTED)
		return finish(chance(70));
	/* nothing is committed */
	if (answer == ANSWER_UNKNOWN)
	{
		snprintf(sqlstate, sizeof(sqlstate), "08006");
		sql_close(&sql);
		return ANSWER_ERROR;
	}
	if (answer == ANSWER_ERROR)
	{
		char		why[6];

		memcpy(why, sqlstate, sizeof(why));
		(void) command("ROLLBACK");
		memcpy(sqlstate, why, sizeof(why));
		return answer;
	}
	(void) command("ROLLBACK");
	return answer;
}

static void
hold(Held *slot, const Request *request, int64_t version, int64_t called)
{
	slot->used = true;
	snprintf(slot->key, sizeof(slot->key), "%s", request->key);
	snprintf(slot->owner, sizeof(slot->owner), "%s", request->owner);
	slot->version = version;
	slot->slots = request->slots;
	slot->ttl = request->ttl;
	slot->until = called + (int64_t) request->ttl * 1000;
}

static void
drop(Held *slot)
{
	remember(slot->key, slot->version);
	slot->used = false;
}

/* The limit changes while others use it. */
static int
any_slots(void)
{
	int			kind = below(100);

	return kind < 35 ? READER : kind < 60 ? EXCLUSIVE : kind < 80 ? 2 : 3;
}

static void
do_acquire(Held *slot)
{
	char		key[KEY_SIZE];
	char		owner[OWNER_SIZE];
	Request		request;
	Answer		answer;
	long		number = next_ops(1);
	int64_t		version = 0;
	int64_t		called;

	memset(&request, 0, sizeof(request));
	snprintf(key, sizeof(key), "shared%d", below(SHARED_KEYS));
	snprintf(owner, sizeof(owner), "c%d-%ld", client, number);
	request.key = key;
	request.owner = owner;
	request.ttl = 500 + 500 * below(6);
	request.wait = chance(50) ? 0 : 50 + below(800);
	request.slots = any_slots();
	if (chance(10))
		request.at_least = 50 + below(450);
	if (chance(10))
		request.delay = 100 + below(900);
	else
		request.lazy = chance(10);

	called = now_us();
	call_acquire(number, &request, 0);
	answer = ask_acquire(&request, chance(25), &version);
	done_acquire(number, answer, version);
	if (answer == ANSWER_GRANTED)
		hold(slot, &request, version, called);
}

/* The same owner asks for another kind. */
static void
do_change(Held *slot)
{
	Request		request;
	Answer		answer;
	long		number = next_ops(1);
	int64_t		version = 0;
	int64_t		called;

	memset(&request, 0, sizeof(request));
	request.key = slot->key;
	request.owner = slot->owner;
	request.ttl = slot->ttl;
	request.wait = chance(50) ? 0 : 50 + below(400);
	request.slots = slot->slots == EXCLUSIVE ? (chance(50) ? READER : 3) : EXCLUSIVE;

	called = now_us();
	call_acquire(number, &request, 0);
	answer = ask_acquire(&request, false, &version);
	done_acquire(number, answer, version);
	if (answer == ANSWER_GRANTED)
	{
		slot->version = version;
		slot->slots = request.slots;
		slot->until = called + (int64_t) slot->ttl * 1000;
	}
	else if (answer == ANSWER_UNKNOWN)
		drop(slot);
}

/* Nothing of a request that was refused is there. */
static void
do_check(const char *key, const char *owner, long after)
{
	const char *params[] = {key, owner};
	PGresult   *result = NULL;
	long		number = next_ops(1);

	history(now_us(), "call %d %ld check key=%s owner=%s after=%ld", client, number, key,
			owner, after);
	if (sql_connect(&sql))
		result = sql_ask(&sql, "SELECT dlock_check($1::text, owner => $2::text)", 2, params, 0);
	if (result == NULL)
		history(now_us(), "done %d %ld check unknown", client, number);
	else if (!sql_good(result, sqlstate))
		history(now_us(), "done %d %ld check error state=%s", client, number, sqlstate);
	else
		history(now_us(), "done %d %ld check %s", client, number,
				strcmp(PQgetvalue(result, 0, 0), "preempting") == 0 ? "held" : PQgetvalue(result, 0, 0));
	PQclear(result);
}

static Answer
ask_all(const Request *requests, int n, int64_t *versions)
{
	char		keys[200] = "{";
	char		slots[100] = "{";
	char		ttl[NUMBER_SIZE];
	char		wait[NUMBER_SIZE];
	const char *params[] = {keys, ttl, requests[0].owner, wait, slots};
	PGresult   *result;
	Answer		answer;

	for (int i = 0; i < n; i++)
	{
		size_t		used = strlen(keys);

		snprintf(keys + used, sizeof(keys) - used, "%s%s", i > 0 ? "," : "", requests[i].key);
		used = strlen(slots);
		if (requests[i].slots == READER)
			snprintf(slots + used, sizeof(slots) - used, "%sNULL", i > 0 ? "," : "");
		else
			snprintf(slots + used, sizeof(slots) - used, "%s%d", i > 0 ? "," : "", requests[i].slots);
	}
	strcat(keys, "}");
	strcat(slots, "}");
	snprintf(ttl, sizeof(ttl), "%dms", requests[0].ttl);
	snprintf(wait, sizeof(wait), "%dms", requests[0].wait);

	snprintf(sqlstate, sizeof(sqlstate), "08001");
	if (!sql_connect(&sql))
		return ANSWER_ERROR;
	sql.warned = false;
	result = sql_ask(&sql,
					 "SELECT unnest(v) FROM dlock_acquire_all($1::text[], $2::interval, owner => $3::text,"
					 " wait => $4::interval, slots => $5::int4[]) AS v",
					 5, params, requests[0].wait);
	answer = answer_of(result);
	if (answer == ANSWER_BUSY && PQntuples(result) == n)
	{
		answer = ANSWER_GRANTED;
		for (int i = 0; i < n; i++)
			versions[i] = strtoll(PQgetvalue(result, i, 0), NULL, 10);
	}
	PQclear(result);
	return answer;
}

/* Some of the keys, in any order. */
static void
do_acquire_all(Held *slots[], int n)
{
	char		keys[SHARED_KEYS][KEY_SIZE];
	char		owner[OWNER_SIZE];
	Request		requests[SHARED_KEYS];
	int64_t		versions[SHARED_KEYS] = {0};
	int			order[SHARED_KEYS] = {0};
	long		first = next_ops(n);
	int64_t		called = now_us();
	Answer		answer;

	memset(requests, 0, sizeof(requests));
	snprintf(owner, sizeof(owner), "c%d-%ld", client, first);
	for (int i = 0; i < SHARED_KEYS; i++)
	{
		int			j = below(i + 1);

		order[i] = order[j];
		order[j] = i;
	}
	for (int i = 0; i < n; i++)
	{
		snprintf(keys[i], sizeof(keys[i]), "shared%d", order[i]);
		requests[i].key = keys[i];
		requests[i].owner = owner;
		requests[i].ttl = i > 0 ? requests[0].ttl : 1000 + 500 * below(4);
		requests[i].wait = i > 0 ? requests[0].wait : chance(40) ? 0 : 50 + below(1500);
		requests[i].slots = chance(50) ? EXCLUSIVE : any_slots();
		call_acquire(first + i, &requests[i], first);
	}
	answer = ask_all(requests, n, versions);
	for (int i = 0; i < n; i++)
	{
		done_acquire(first + i, answer, versions[i]);
		if (answer == ANSWER_GRANTED)
			hold(slots[i], &requests[i], versions[i], called);
	}
	if (answer == ANSWER_BUSY && chance(30))
		for (int i = 0; i < n; i++)
			do_check(keys[i], owner, first + i);
}

static void
do_refresh(Held *slot)
{
	char		version[NUMBER_SIZE];
	char		ttl[NUMBER_SIZE];
	const char *params[] = {slot->key, version, ttl};
	PGresult   *result = NULL;
	Answer		answer = ANSWER_ERROR;
	long		number = next_ops(1);
	int64_t		called = now_us();

	snprintf(version, sizeof(version), "%lld", (long long) slot->version);
	snprintf(ttl, sizeof(ttl), "%dms", slot->ttl);
	history(called, "call %d %ld refresh key=%s version=%lld ttl=%d", client, number,
			slot->key, (long long) slot->version, slot->ttl);
	snprintf(sqlstate, sizeof(sqlstate), "08001");
	if (sql_connect(&sql))
	{
		sql.warned = false;
		result = sql_ask(&sql, "SELECT dlock_refresh($1::text, $2::int8, $3::interval)", 3, params, 0);
		answer = answer_of(result);
	}
	switch (answer)
	{
		case ANSWER_GRANTED:
			history(now_us(), "done %d %ld refresh ok", client, number);
			slot->until = called + (int64_t) slot->ttl * 1000;
			break;
		case ANSWER_BUSY:
			history(now_us(), "done %d %ld refresh lost", client, number);
			drop(slot);
			break;
		case ANSWER_ERROR:
			history(now_us(), "done %d %ld refresh error state=%s", client, number, sqlstate);
			break;
		case ANSWER_UNKNOWN:
			history(now_us(), "done %d %ld refresh unknown", client, number);
			break;
	}
	PQclear(result);
}

static void
do_release(Held *slot)
{
	char		version[NUMBER_SIZE];
	const char *params[] = {slot->key, version};
	PGresult   *result = NULL;
	Answer		answer = ANSWER_ERROR;
	long		number = next_ops(1);

	snprintf(version, sizeof(version), "%lld", (long long) slot->version);
	history(now_us(), "call %d %ld release key=%s version=%lld", client, number, slot->key,
			(long long) slot->version);
	snprintf(sqlstate, sizeof(sqlstate), "08001");
	if (sql_connect(&sql))
	{
		sql.warned = false;
		result = sql_ask(&sql, "SELECT dlock_release($1::text, $2::int8)", 2, params, 0);
		answer = answer_of(result);
	}
	if (answer == ANSWER_GRANTED)
		history(now_us(), "done %d %ld release %s", client, number, PQgetvalue(result, 0, 0));
	else if (answer == ANSWER_ERROR)
		history(now_us(), "done %d %ld release error state=%s", client, number, sqlstate);
	else
		history(now_us(), "done %d %ld release unknown", client, number);
	PQclear(result);
	drop(slot);
}

static void
use(Held *slot)
{
	int			what = below(100);
	int64_t		left = (slot->until - now_us()) / 1000;

	if (left <= 0 && chance(50))
		drop(slot);
	else if (what < 30)
		do_write(slot->key, slot->version, left > 0 ? (int) left : 0);
	else if (what < 45)
		do_refresh(slot);
	else if (what < 60)
		do_change(slot);
	else if (what < 90)
		do_release(slot);
	else if (what < 93)
		drop(slot);
	else
		rest(below(100));
}

void
kinds_step(void)
{
	Held	   *slots[HELD];
	int			nfree = 0;

	for (int i = 0; i < HELD; i++)
		if (!held[i].used)
			slots[nfree++] = &held[i];
	if (nfree < HELD && chance(60))
	{
		Held	   *slot = &held[below(HELD)];

		if (slot->used)
			use(slot);
	}
	else if (nfree >= 2 && chance(25))
		do_acquire_all(slots, 2 + below(nfree - 1));
	else if (nfree > 0)
		do_acquire(slots[0]);
}

void
kinds_end(void)
{
	for (int i = 0; i < HELD; i++)
		if (held[i].used)
			do_release(&held[i]);
	sql_close(&sql);
}
