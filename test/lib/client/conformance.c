/*-------------------------------------------------------------------------
 *
 * conformance.c
 *	  libdlock's driver for the scenarios of test/conformance: one command in each
 *	  line of stdin, one answer or event in each line of stdout, both JSON.
 *
 * Every command runs in a thread of its own.  The runner names client objects and
 * locks.  See test/conformance/README.md.
 *
 *-------------------------------------------------------------------------
 */
#include <libpq-fe.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "dlock.h"

#define MAX_FIELDS 32
#define MAX_KEYS 8

/* A command; all values are text, and those of an array have newlines between them. */
typedef struct
{
	int			n;
	char	   *names[MAX_FIELDS];
	char	   *values[MAX_FIELDS];
} Command;

/* A client object, or what one acquire was granted.  They stay until the end. */
typedef struct Thing
{
	const char *client;
	const char *name;			/* of the lock; "" for a client object */
	char		conninfo[300];
	dlock_handle *handle;
	dlock_lock *locks[MAX_KEYS];
	int			n;				/* of them */
	bool		told;			/* that it is lost */
	struct Thing *next;
} Thing;

static Thing *things;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/*
 * Commands and answers
 */

/* The value at *at, which moves behind it.  Of escapes, the runner uses \" and \\. */
static char *
scan_value(const char **at)
{
	char	   *value = calloc(1, strlen(*at) + 1);
	char	   *to = value;
	char		end = *(*at)++;

	if (end != '"' && end != '[')
		(*at)--;
	while (**at != '\0' && (end == '"' ? **at != '"' : strchr(end == '[' ? "]" : ",}", **at) == NULL))
	{
		if (end == '[' && **at == '"')
		{
			char	   *element = scan_value(at);

			to = stpcpy(to, element);
			free(element);
		}
		else if (end == '[')
		{
			*to++ = '\n';
			(*at)++;
		}
		else
		{
			*at += **at == '\\';
			*to++ = *(*at)++;
		}
	}
	*at += end == '"' || end == '[';
	return value;
}

/* One flat object, without spaces between the tokens. */
static Command *
parse(const char *at)
{
	Command    *command = calloc(1, sizeof(Command));

	while ((*at == '{' || *at == ',') && at[1] == '"' && command->n < MAX_FIELDS)
	{
		at++;
		command->names[command->n] = scan_value(&at);
		at++;
		command->values[command->n++] = scan_value(&at);
	}
	return command;
}

static void
free_command(Command *command)
{
	for (int i = 0; i < command->n; i++)
	{
		free(command->names[i]);
		free(command->values[i]);
	}
	free(command);
}

/* The value of a field, or "". */
static const char *
text(const Command *command, const char *name)
{
	for (int i = 0; i < command->n; i++)
		if (strcmp(command->names[i], name) == 0)
			return command->values[i];
	return "";
}

static int64_t
number(const Command *command, const char *name, int64_t otherwise)
{
	const char *value = text(command, name);

	return *value != '\0' ? strtoll(value, NULL, 10) : otherwise;
}

static bool
flag(const Command *command, const char *name)
{
	return strcmp(text(command, name), "true") == 0;
}

/* A whole line at once, because every thread writes. */
static void
say(const char *line)
{
	pthread_mutex_lock(&mutex);
	puts(line);
	fflush(stdout);
	pthread_mutex_unlock(&mutex);
}

static void
answer(const Command *command, const char *result, const char *more)
{
	char		line[2000];

	snprintf(line, sizeof(line), "{\"id\":%s,\"result\":\"%s\"%s}", text(command, "id"), result, more);
	say(line);
}

static const char *
result_of(const dlock_error *err)
{
	switch (err->status)
	{
		case DLOCK_BUSY:
			return "busy";
		case DLOCK_REFUSED:
			return "refused";
		case DLOCK_LOST:
		case DLOCK_NOT_HELD:
		case DLOCK_HELD_BY_OTHER:
			return "lost";
		case DLOCK_TIMEOUT:
		case DLOCK_UNREACHABLE:
			return "unreachable";
		case DLOCK_DENIED:
			return "denied";
		case DLOCK_NOT_READY:
			return "not_ready";
		case DLOCK_INVALID:
			return "invalid";
		default:
			return strcmp(err->sqlstate, "40P01") == 0 ? "deadlock" : "error";
	}
}

static void
answer_error(const Command *command, const dlock_error *err)
{
	char		message[sizeof(err->message)];
	char		more[1000];
	size_t		n = 0;

	for (const char *from = err->message; *from != '\0'; from++)
		message[n++] = *from == '"' || *from == '\\' || (unsigned char) *from < ' ' ? '\'' : *from;
	message[n] = '\0';
	snprintf(more, sizeof(more), ",\"sqlstate\":\"%s\",\"message\":\"%s\"", err->sqlstate, message);
	answer(command, result_of(err), more);
}

/*
 * Client objects and locks
 */

/* The newest one of that name. */
static Thing *
find(const char *client, const char *name)
{
	Thing	   *thing;

	pthread_mutex_lock(&mutex);
	thing = things;
	while (thing != NULL && (strcmp(thing->client, client) != 0 || strcmp(thing->name, name) != 0))
		thing = thing->next;
	pthread_mutex_unlock(&mutex);
	return thing;
}

static Thing *
add(const char *client, const char *name)
{
	Thing	   *thing = calloc(1, sizeof(Thing));

	thing->client = strdup(client);
	thing->name = strdup(name);
	pthread_mutex_lock(&mutex);
	thing->next = things;
	things = thing;
	pthread_mutex_unlock(&mutex);
	return thing;
}

static void
on_event(const dlock_event *event, void *arg)
{
	Thing	   *thing = arg;
	char		line[500];
	struct timespec now;

	if (event->type == DLOCK_EVENT_DANGER || (event->type == DLOCK_EVENT_LOST && thing->told))
		return;
	thing->told |= event->type == DLOCK_EVENT_LOST;
	clock_gettime(CLOCK_REALTIME, &now);
	snprintf(line, sizeof(line),
			 "{\"event\":\"%s\",\"client\":\"%s\",\"lock\":\"%s\",\"reason\":\"%s\",\"left\":%lld,\"at\":%lld}",
			 event->type == DLOCK_EVENT_LOST ? "lost" : "asked", thing->client, thing->name,
			 event->type == DLOCK_EVENT_LOST ? dlock_reason_name(event->reason) : "priority",
			 (long long) event->left_ms, (long long) now.tv_sec * 1000 + now.tv_nsec / 1000000);
	say(line);
}

static bool
is_held(const Thing *thing)
{
	for (int i = 0; i < thing->n; i++)
		if (!dlock_is_owner(thing->locks[i]))
			return false;
	return thing->n > 0;
}

static void
do_open(const Command *command)
{
	Thing	   *client = add(text(command, "client"), "");
	dlock_open_options options;
	dlock_error err;

	snprintf(client->conninfo, sizeof(client->conninfo), "host=%s port=%s dbname=%s user=%s",
			 text(command, "host"), text(command, "port"), text(command, "dbname"), text(command, "user"));
	dlock_open_options_init(&options);
	options.timeout_ms = number(command, "timeout", options.timeout_ms);
	options.max_connections = (int) number(command, "pool", options.max_connections);
	if (dlock_open(client->conninfo, &options, &client->handle, &err) == DLOCK_OK)
		answer(command, "ok", "");
	else
		answer_error(command, &err);
}

static void
do_close(const Command *command)
{
	Thing	   *client = find(text(command, "client"), "");

	dlock_close(client->handle);
	client->handle = NULL;
	answer(command, "ok", "");
}

static void
do_acquire(const Command *command)
{
	dlock_handle *handle = find(text(command, "client"), "")->handle;
	Thing	   *lock = add(text(command, "client"), text(command, "lock"));
	const char *value = text(command, "value");
	char	   *keys[MAX_KEYS];
	char	   *copy = strdup(text(command, "keys"));
	char	   *rest = copy;
	int			n = 0;
	dlock_options options;
	dlock_status status;
	dlock_error err;

	while (rest != NULL && n < MAX_KEYS)
		keys[n++] = strsep(&rest, "\n");
	dlock_options_init(&options);
	options.ttl_ms = number(command, "ttl", 0);
	options.wait_ms = number(command, "wait", 0);
	options.value = *value != '\0' ? value : NULL;
	options.priority = (int32_t) number(command, "priority", 0);
	options.cleanup_ms = number(command, "cleanup", 0);
	options.force = flag(command, "force");
	options.slots = (int32_t) number(command, "slots", 1);
	options.shared = flag(command, "shared");
	options.at_least_ms = number(command, "at_least", 0);
	options.delay_ms = number(command, "delay", 0);
	options.callback = on_event;
	options.callback_arg = lock;
	if (n == 1)
		status = dlock_acquire(handle, keys[0], &options, lock->locks, &err);
	else
		status = dlock_acquire_all(handle, (const char *const *) keys, (size_t) n, NULL, NULL, &options, lock->locks, &err);
	if (status == DLOCK_OK)
	{
		char		more[300] = ",\"versions\":[";

		lock->n = n;
		for (int i = 0; i < n; i++)
			sprintf(more + strlen(more), "%s%lld", i > 0 ? "," : "", (long long) dlock_version(lock->locks[i]));
		answer(command, "granted", strcat(more, "]"));
	}
	else
		answer_error(command, &err);
	free(copy);
}

static void
do_release(const Command *command)
{
	Thing	   *lock = find(text(command, "client"), text(command, "lock"));
	bool		was_held = is_held(lock);
	dlock_error err;
	dlock_status status = dlock_release_all(lock->locks, (size_t) lock->n, -1, &err);

	if (status == DLOCK_OK && !was_held)
		answer(command, "lost", "");
	else if (status == DLOCK_OK)
		answer(command, "released", "");
	else
		answer_error(command, &err);
}

static void
do_state(const Command *command)
{
	answer(command, is_held(find(text(command, "client"), text(command, "lock"))) ? "held" : "not_held", "");
}

/* What libdlock leaves to the program: the fence in a transaction of its own connection. */
static void
do_fenced(const Command *command)
{
	Thing	   *lock = find(text(command, "client"), text(command, "lock"));
	PGconn	   *conn;
	PGresult   *res = NULL;
	const char *sqlstate;

	if (!is_held(lock))
	{
		answer(command, "lost", "");
		return;
	}
	conn = PQconnectdb(find(text(command, "client"), "")->conninfo);
	for (int i = 0; i < lock->n + 3; i++)
	{
		char		fence[100] = "BEGIN";

		if (i > 0 && i <= lock->n)
			snprintf(fence, sizeof(fence), "SELECT dlock_fence('%s', %lld)", dlock_key(lock->locks[i - 1]),
					 (long long) dlock_version(lock->locks[i - 1]));
		PQclear(res);
		res = PQexec(conn, i <= lock->n ? fence : i == lock->n + 1 ? text(command, "sql") : "COMMIT");
		if (PQresultStatus(res) != PGRES_COMMAND_OK && PQresultStatus(res) != PGRES_TUPLES_OK)
			break;
	}
	sqlstate = PQresultErrorField(res, PG_DIAG_SQLSTATE);
	if (strcmp(PQcmdStatus(res), "COMMIT") == 0)
		answer(command, "ok", "");
	else
		answer(command, sqlstate != NULL && strcmp(sqlstate, "LK001") == 0 ? "lost" : "error", "");
	PQclear(res);
	PQfinish(conn);
}

static void
do_fork(const Command *command)
{
	Thing	   *lock = find(text(command, "client"), text(command, "lock"));
	dlock_handle *handle = find(text(command, "client"), "")->handle;
	char		more[100];
	char		said[50] = "";
	int			pipes[2];
	pid_t		pid;

	if (pipe(pipes) != 0 || (pid = fork()) < 0)
		return;
	if (pid == 0)
	{
		dlock_lock *another = NULL;
		dlock_error err = {DLOCK_OK, "", "", ""};

		dlock_acquire(handle, "of a child", NULL, &another, &err);
		dprintf(pipes[1], "%s %s", is_held(lock) ? "held" : "not_held", another != NULL ? "granted" : result_of(&err));
		dlock_close(handle);
		_exit(0);
	}
	waitpid(pid, NULL, 0);
	if (read(pipes[0], said, sizeof(said) - 1) > 0)
	{
		char	   *tried = strchr(said, ' ');

		*tried = '\0';
		snprintf(more, sizeof(more), ",\"acquire\":\"%s\"", tried + 1);
		answer(command, said, more);
	}
	close(pipes[0]);
	close(pipes[1]);
}

static const struct
{
	const char *name;
	void		(*run) (const Command *command);
}			verbs[] = {
	{"open", do_open}, {"close", do_close}, {"acquire", do_acquire}, {"release", do_release},
	{"state", do_state}, {"fenced", do_fenced}, {"fork", do_fork},
};

static void *
obey(void *arg)
{
	Command    *command = arg;
	size_t		i = 0;

	while (i < sizeof(verbs) / sizeof(verbs[0]) && strcmp(verbs[i].name, text(command, "do")) != 0)
		i++;
	if (i < sizeof(verbs) / sizeof(verbs[0]))
		verbs[i].run(command);
	else
		answer(command, "error", ",\"message\":\"libdlock cannot do this\"");
	free_command(command);
	return NULL;
}

int
main(void)
{
	char	   *line = NULL;
	size_t		size = 0;

	while (getline(&line, &size, stdin) > 0)
	{
		pthread_t	thread;

		if (pthread_create(&thread, NULL, obey, parse(line)) != 0)
			return 1;
		pthread_detach(thread);
	}
	return 0;
}
