/*-------------------------------------------------------------------------
 *
 * unit_test.c
 *	  libdlock without a PostgreSQL: arguments, names, strings, and servers
 *	  that are not there or do not answer.
 *
 *-------------------------------------------------------------------------
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/engine.h"
#include "net/errors.h"
#include "net/conn.h"
#include "unit_test.h"

static int	tests = 0;
static int	failed = 0;

void
ok(bool good, const char *fmt,...)
{
	va_list		args;

	printf("%sok %d - ", good ? "" : "not ", ++tests);
	va_start(args, fmt);
	vprintf(fmt, args);
	va_end(args);
	printf("\n");
	failed += !good;
}

static void
is(const char *got, const char *expected, const char *what)
{
	ok(strcmp(got, expected) == 0, "%s", what);
	if (strcmp(got, expected) != 0)
		printf("# got \"%s\", expected \"%s\"\n", got, expected);
}

static void
test_names(void)
{
	char		all[400] = "";

	for (int i = DLOCK_OK; i <= DLOCK_CANCELLED + 1; i++)
	{
		strcat(all, dlock_status_name((dlock_status) i));
		strcat(all, " ");
	}
	is(all, "ok busy not_held held_by_other preempting lost refused unchanged timeout unreachable"
	   " denied not_ready invalid server_error no_memory cancelled unknown ", "each status has a name");
	is(dlock_event_name(DLOCK_EVENT_PREEMPTED), "preempted", "event");
	is(dlock_event_name(DLOCK_EVENT_DANGER), "danger", "event");
	is(dlock_event_name(DLOCK_EVENT_LOST), "lost", "event");
	is(dlock_event_name((dlock_event_type) 99), "unknown", "no event");
	is(dlock_reason_name(DLOCK_REASON_NONE), "none", "reason");
	is(dlock_reason_name(DLOCK_REASON_DEADLINE), "deadline", "reason");
	is(dlock_reason_name(DLOCK_REASON_EXPIRED), "expired", "reason");
	is(dlock_reason_name(DLOCK_REASON_PREEMPTED), "preempted", "reason");
	is(dlock_reason_name(DLOCK_REASON_FORCED), "forced", "reason");
	is(dlock_reason_name((dlock_reason) 99), "unknown", "no reason");
	ok(dlock_lib_version() == DLOCK_LIB_VERSION, "the library is that of the header");
}

static void
test_util(void)
{
	char		text[11];
	char		owner[DLOCK_OWNER_SIZE];
	char		other[DLOCK_OWNER_SIZE];
	sem_t		semaphore;
	int64_t		start;
	int64_t		low = 1000;
	int64_t		high = 0;

	dlock_clip(text, sizeof(text), "  two\n\tlines and more", 100);
	is(text, "two lines", "a message is one line, and fits");
	dlock_clip(text, sizeof(text), "12345678\xc3\xa4\xc3\xa4", 100);
	is(text, "12345678", "no character is cut in two");
	dlock_clip(text, sizeof(text), "abcdef", 3);
	is(text, "abc", "nor is more copied than there is");

	ok(dlock_later(DLOCK_NEVER, 5) == DLOCK_NEVER && dlock_later(5, DLOCK_NEVER) == DLOCK_NEVER &&
	   dlock_later(5, 6) == 11, "never is the latest");
	ok(dlock_poll_timeout(10, 10) == 0 && dlock_poll_timeout(9, 10) == 0 &&
	   dlock_poll_timeout(15, 10) == 5 && dlock_poll_timeout(DLOCK_NEVER, 10) == 60000,
	   "time to poll");
	for (int i = 0; i < 1000; i++)
	{
		int64_t		jitter = dlock_jitter(1000);

		low = dlock_min(low, jitter);
		high = dlock_max(high, jitter);
	}
	ok(low >= 900 && low < 950 && high <= 1100 && high > 1050, "jitter is a tenth either way");
	ok(dlock_jitter(1) == 1 && dlock_jitter(0) == 0, "of nothing, nothing");

	sem_init(&semaphore, 0, 0);
	ok(!dlock_semaphore_wait(&semaphore, dlock_now()), "no wait for a time that has come");
	start = dlock_now();
	ok(!dlock_semaphore_wait(&semaphore, start + 20) && dlock_now() >= start + 19, "a wait");
	sem_post(&semaphore);
	ok(dlock_semaphore_wait(&semaphore, dlock_now()), "no wait for what was posted");
	sem_destroy(&semaphore);

	ok(dlock_random_owner(owner) && dlock_random_owner(other), "owners");
	ok(strlen(owner) == 32 && strspn(owner, "0123456789abcdef") == 32, "of 128 bits");
	ok(strcmp(owner, other) != 0, "which differ");
	ok(dlock_lease_ms(20000) == 18000, "nine tenths of the TTL are ours");
	ok(!dlock_resolve_needed("127.0.0.1") && !dlock_resolve_needed("::1") &&
	   !dlock_resolve_needed("/tmp") && !dlock_resolve_needed("") && !dlock_resolve_needed(NULL) &&
	   dlock_resolve_needed("localhost"), "what is a name");
}

/* Nothing of this reaches a server. */
static void
test_several(dlock_handle *handle)
{
	const char *keys[] = {"a", NULL};
	const int32_t slots[] = {-2, 0};
	dlock_lock *locks[2] = {NULL, NULL};
	dlock_options options;
	dlock_error err;

	ok(dlock_acquire_all(handle, NULL, 1, NULL, NULL, NULL, locks, &err) == DLOCK_INVALID, "all: no keys");
	ok(dlock_acquire_all(handle, keys, 1, NULL, NULL, NULL, NULL, &err) == DLOCK_INVALID, "all: no locks");
	ok(dlock_acquire_all(handle, keys, 0, NULL, NULL, NULL, locks, &err) == DLOCK_INVALID, "all: none");
	ok(dlock_acquire_all(handle, keys, 2, NULL, NULL, NULL, locks, &err) == DLOCK_INVALID, "all: a key is null");
	ok(dlock_acquire_all(handle, keys, 1, slots, NULL, NULL, locks, &err) == DLOCK_INVALID, "all: invalid slots");
	ok(dlock_acquire_all(NULL, keys, 1, NULL, NULL, NULL, locks, &err) == DLOCK_INVALID, "all: no handle");
	ok(dlock_release_all(locks, 0, 0, &err) == DLOCK_OK, "release all: none");
	ok(dlock_release_all(locks, 1, 0, &err) == DLOCK_INVALID, "release all: null");
	ok(dlock_adopt(handle, "a", 1, NULL, NULL, NULL, &err) == DLOCK_INVALID, "adopt: no lock");
	ok(dlock_adopt(handle, NULL, 1, NULL, NULL, locks, &err) == DLOCK_INVALID, "adopt: no key");
	ok(dlock_adopt(handle, "a", 0, NULL, NULL, locks, &err) == DLOCK_INVALID, "adopt: no version");
	dlock_options_init(&options);
	options.slots = -2;
	ok(dlock_acquire(handle, "a", &options, locks, &err) == DLOCK_INVALID, "acquire: invalid slots");
	dlock_options_init(&options);
	options.slots = 2;
	options.shared = 1;
	ok(dlock_acquire(handle, "a", &options, locks, &err) == DLOCK_INVALID, "acquire: shared, and one of two");
	dlock_options_init(&options);
	options.owner = "me";
	ok(dlock_acquire_all(handle, keys, 1, NULL, NULL, &options, locks, &err) == DLOCK_INVALID, "all: an owner without adopt");
	dlock_options_init(&options);
	options.delay_ms = -1;
	ok(dlock_acquire(handle, "a", &options, locks, &err) == DLOCK_INVALID, "acquire: negative delay");

	/* a program that was built before there were kinds of locks */
	dlock_options_init_size(&options, offsetof(dlock_options, slots));
	options.slots = -2;
	options.timeout_ms = 1;
	ok(dlock_acquire(handle, "a", &options, locks, &err) == DLOCK_UNREACHABLE, "acquire: with the options of an older header");
}

static void
test_arguments(void)
{
	dlock_handle *handle = (dlock_handle *) 1;
	dlock_lock *lock = (dlock_lock *) 1;
	dlock_open_options open_options;
	dlock_options options;
	dlock_error err;
	int64_t		version = 0;

	ok(dlock_open("nonsense", NULL, &handle, &err) == DLOCK_INVALID && handle == NULL, "bad conninfo");
	ok(err.status == DLOCK_INVALID && strstr(err.message, "missing \"=\"") != NULL, "says why");
	ok(dlock_open("host=a,b port=1,2,3", NULL, &handle, &err) == DLOCK_INVALID, "too many ports");
	ok(dlock_open("host=a,b hostaddr=::1", NULL, &handle, &err) == DLOCK_INVALID, "too few addresses");
	ok(dlock_open("postgresql://u@h1:1,h2:2/db?x=y", NULL, &handle, &err) == DLOCK_INVALID, "bad option of a URI");
	ok(dlock_open("", NULL, NULL, NULL) == DLOCK_INVALID, "no place for the handle");

	dlock_open_options_init(&open_options);
	ok(open_options.size == sizeof(open_options) && open_options.ttl_ms == 20000, "defaults");
	open_options.ttl_ms = 0;
	ok(dlock_open("", &open_options, &handle, &err) == DLOCK_INVALID, "bad TTL");
	memset(&open_options, 0, sizeof(open_options));
	ok(dlock_open("", &open_options, &handle, &err) == DLOCK_INVALID &&
	   strstr(err.message, "not initialized") != NULL, "options that were not initialized");

	/* a program that was built when the struct was smaller, and one of later */
	open_options.size = offsetof(dlock_open_options, timeout_ms);
	open_options.ttl_ms = 30000;
	open_options.timeout_ms = -1;
	ok(dlock_open("host=/nowhere", &open_options, &handle, &err) == DLOCK_OK, "a smaller struct");
	ok(handle->timeout_ms == 10000, "what it does not have has its default");
	dlock_close(handle);

	ok(dlock_open("postgresql://u@h1:1,h2:2/db", NULL, &handle, &err) == DLOCK_OK, "a URI of two hosts");
	ok(dlock_conninfo_round_ms(handle->conninfo) == 10000, "has two hosts");
	dlock_close(handle);
	ok(dlock_open(NULL, NULL, &handle, &err) == DLOCK_OK, "no conninfo");
	ok(dlock_acquire(handle, NULL, NULL, &lock, &err) == DLOCK_INVALID && lock == NULL, "no key");
	ok(dlock_acquire(handle, "k", NULL, NULL, &err) == DLOCK_INVALID, "no place for the lock");
	dlock_options_init(&options);
	options.wait_ms = -2;
	ok(dlock_acquire(handle, "k", &options, &lock, &err) == DLOCK_INVALID, "bad wait");
	dlock_options_init(&options);
	options.ttl_ms = -1;
	ok(dlock_acquire(handle, "k", &options, &lock, &err) == DLOCK_INVALID, "bad TTL");
	dlock_options_init(&options);
	options.cleanup_ms = -1;
	ok(dlock_acquire(handle, "k", &options, &lock, &err) == DLOCK_INVALID, "bad cleanup");
	ok(dlock_watch(handle, NULL, &version, 0, &err) == DLOCK_INVALID, "watch: no key");
	ok(dlock_check_key(handle, NULL, 1, NULL, 0, &err) == DLOCK_INVALID, "check: no key");
	ok(dlock_get_info(handle, "k", 0, NULL, NULL, &err) == DLOCK_INVALID, "info: no place");
	ok(dlock_list(handle, NULL, NULL, 0, 0, NULL, NULL, &err) == DLOCK_INVALID, "list: no place");
	ok(dlock_force_release(handle, NULL, 0, "x", 0, NULL, &err) == DLOCK_INVALID, "force: no key");
	test_several(handle);
	dlock_close(handle);

	ok(dlock_acquire(NULL, "k", NULL, &lock, &err) == DLOCK_INVALID, "no handle");
	ok(dlock_release(NULL, 0, &err) == DLOCK_INVALID && dlock_refresh(NULL, 0, 0, &err) == DLOCK_INVALID &&
	   dlock_check(NULL, 0, &err) == DLOCK_INVALID, "no lock");
	ok(dlock_is_owner(NULL) == 0 && dlock_left_ms(NULL) == 0 &&
	   dlock_lost_reason(NULL) == DLOCK_REASON_NONE, "no lock is not ours");
	dlock_close(NULL);
	dlock_free(NULL);
	dlock_info_free(NULL);
	dlock_list_free(NULL, 0);
	dlock_waiters_free(NULL, 0);
	ok(true, "nothing is freed");
}

/* An event, as "key version" or "key #ticket", "(none)" if it is none. */
static void
event_is(const char *payload, const char *expected, const char *what)
{
	char		got[500] = "(none)";
	DlockEvent	event;

	if (dlock_events_scan(payload, &event))
	{
		int			len = (int) event.key_len;

		if (event.ticket > 0)
			snprintf(got, sizeof(got), "%.*s #%lld%s%s %s", len, event.key, (long long) event.ticket,
					 event.missed ? " missed " : " granted", event.code, event.reason);
		else
			snprintf(got, sizeof(got), "%.*s %lld%s", len, event.key, (long long) event.version,
					 event.forced ? " forced" : "");
	}
	is(got, expected, what);
}

/* An event proves nothing, so this is about what is found, and not about JSON. */
static void
test_events(void)
{
	static const char *const bad[] = {
		"", "{", "{}", "[]", "null", "17", "\"x\"", "event", "{\"event\"}", "\"version\": 5",
		"{\"event\": \"forced\", \"key\": \"k\"}",
		"{\"event\": \"forced\", \"version\": 5}",
		"{\"key\": \"k\", \"version\": 5}",
		"{\"event\": \"other\", \"key\": \"k\", \"version\": 5}",
		"{\"event\": \"forced\", \"key\": \"k\", \"version\": 0}",
		"{\"event\": \"forced\", \"key\": \"k\", \"version\": -5}",
		"{\"event\": \"forced\", \"key\": \"k\", \"version\": \"5\"}",
		"{\"event\": \"forced\", \"key\": \"k\\",
		"{\"event\": \"forced\", \"x\": {\"key\": \"k\", \"version\": 5}}",
		"{\"event\": \"forced\", \"x\": [5], \"key\": \"k\", \"version\": 5}",
		"{\"event\": \"missed\", \"key\": \"k\"}",
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		event_is(bad[i], "(none)", bad[i][0] != '\0' ? bad[i] : "no event");
	event_is("{\"event\": \"forced\", \"key\": \"k\", \"version\": 5, \"by\": \"me\", \"reason\": \"x\"}",
			 "k 5 forced", "forced");
	event_is("{\"event\": \"preempt\", \"key\": \"k\", \"version\": 5, \"by\": null, \"priority\": 1}",
			 "k 5", "preempt");
	event_is("{\"event\": \"granted\", \"key\": \"k\", \"version\": 5, \"ticket\": 7}",
			 "k #7 granted ", "a ticket that was granted");
	event_is("{\"event\": \"missed\", \"key\": \"k\", \"ticket\": 7, \"code\": \"40P01\", \"reason\": \"a \\\"deadlock\\\"\"}",
			 "k #7 missed 40P01 a \"deadlock\"", "a ticket that was missed, and why");
	event_is("{\"event\": \"missed\", \"key\": \"k\", \"ticket\": 7}",
			 "k #7 missed  ", "a ticket that was missed");
	event_is(" {\"version\":9223372036854775807,\"key\":\"k\",\"event\":\"expired\"}",
			 "k 9223372036854775807", "expired, in another order");
	event_is("{\"event\": \"forced\", \"key\": \"k\", \"version\": 5, \"version\": 6}", "(none)", "two versions");
	event_is("{\"event\": \"preempt\", \"key\": \"\\\"version\\\": 5\", \"version\": 6}",
			 "\\\"version\\\": 5 6", "a key that looks like a version");
	event_is("{\"event\": \"preempt\", \"key\": \"\\\"event\\\": \\\"forced\\\"\", \"version\": 6}",
			 "\\\"event\\\": \\\"forced\\\" 6", "a key that looks like an event");
}

/* The rate of questions, whatever is heard. */
static void
test_hearing(void)
{
	dlock_handle *handle;
	dlock_lock	lock = {0};
	dlock_lock	other = {0};
	dlock_lock *both[] = {&lock, &other};
	int64_t		now = dlock_now();
	int			asked = 0;

	if (dlock_open("host=/nowhere", NULL, &handle, NULL) != DLOCK_OK)
		abort();
	lock.handle = other.handle = handle;
	lock.key = strdup("k");
	other.key = strdup("k");
	lock.version = 5;
	other.version = 7;
	lock.next = &other;
	handle->locks = &lock;

	dlock_events_hear(handle, "{\"event\": \"forced\", \"key\": \"k\", \"version\": 6}");
	dlock_events_hear(handle, "{\"event\": \"forced\", \"key\": \"K\", \"version\": 5}");
	ok(!lock.heard && !other.heard, "not ours");
	dlock_events_hear(handle, "{\"event\": \"preempt\", \"key\": \"k\", \"version\": 5}");
	ok(lock.heard && !lock.forced && !other.heard, "ours");
	ok(dlock_events_ripe(&lock, now) && !dlock_events_ripe(&other, now), "is asked about at once");

	/* an event each millisecond, for ten seconds */
	for (int64_t t = now; t < now + 10000; t++)
	{
		dlock_events_hear(handle, "{\"event\": \"forced\", \"key\": \"k\", \"version\": 5}");
		if (dlock_events_ripe(&lock, t))
		{
			asked++;
			dlock_events_asked(handle, both, 2, t);
		}
	}
	ok(asked == 10000 / DLOCK_EVENT_PAUSE_MS + DLOCK_EVENT_BURST - 1, "a bounded number of questions");
	ok(lock.heard && dlock_events_ripe_at(handle) <= now + 10000,
	   "and the last event is asked about, too");

	dlock_events_asked(handle, both, 2, now + 10000);
	dlock_events_refuted(&lock);
	ok(!lock.heard && !lock.forced, "an answer refutes what was heard");
	dlock_events_hear(handle, "{\"event\": \"forced\", \"key\": \"k\", \"version\": 5}");
	dlock_events_asked(handle, both, 2, now + 10000);
	dlock_events_hear(handle, "{\"event\": \"forced\", \"key\": \"k\", \"version\": 5}");
	dlock_events_refuted(&lock);
	ok(lock.heard && lock.forced, "but not what was heard after the question");
	dlock_events_asked(handle, both, 2, now + 10000);
	dlock_events_unanswered(&lock);
	ok(lock.heard, "and no answer is none");

	/* keys with what JSON escapes */
	lock.heard = false;
	free(lock.key);
	lock.key = strdup("a\"b\\c\td\001\xc3\xa4");
	dlock_events_hear(handle, "{\"event\": \"forced\", \"key\": \"a\\\"b\\\\c\\td\\u0001\xc3\xa4x\", \"version\": 5}");
	ok(!lock.heard, "a longer key");
	dlock_events_hear(handle, "{\"event\": \"forced\", \"key\": \"a\\\"b\\\\c\\td\\u0001\xc3\xa4\", \"version\": 5}");
	ok(lock.heard, "a key as the server writes it");

	handle->locks = NULL;
	free(lock.key);
	free(other.key);
	dlock_close(handle);
}

/* "status retry" of an error of the server */
static void
error_is(const char *code, const char *expected)
{
	dlock_error error;
	char		got[100];
	bool		retry;

	dlock_error_make(&error, code, "text", NULL, NULL);
	retry = dlock_error_classify(&error);
	snprintf(got, sizeof(got), "%s%s%s", dlock_status_name(error.status), retry ? " retry" : "",
			 dlock_error_turned_away(&error) ? " there" : "");
	is(got, expected, code);
}

static bool
timed_out(const char *code, const char *function, int64_t took, int64_t timeout)
{
	dlock_error error;

	dlock_error_make(&error, code, "text", NULL, NULL);
	dlock_error_classify(&error);
	return dlock_error_timed_out(&error, function, took, timeout) && error.status == DLOCK_TIMEOUT;
}

static bool
no_cluster(const char *code, const char *function)
{
	dlock_error error;

	dlock_error_make(&error, code, "text", NULL, NULL);
	dlock_error_classify(&error);
	return dlock_error_no_cluster(&error, function) && error.status == DLOCK_UNREACHABLE;
}

static void
test_errors(void)
{
	dlock_error error;

	error_is("", "unreachable retry");
	error_is("08006", "unreachable retry");
	error_is("25006", "unreachable retry");
	error_is("25P04", "unreachable retry");
	error_is("53300", "unreachable retry there");
	error_is("57P01", "unreachable retry there");
	error_is("57P03", "unreachable retry there");
	error_is("28P01", "denied");
	error_is("3D000", "denied");
	error_is("42501", "denied");
	error_is("55000", "not_ready");
	error_is("42883", "not_ready");
	error_is("42P01", "not_ready");
	error_is("3F000", "not_ready");
	error_is("42704", "not_ready");
	error_is("55P03", "refused");
	error_is("22023", "invalid");
	error_is("40P01", "server_error");
	error_is("57014", "server_error");

	ok(no_cluster("XX000", "plproxy_error_with_state"), "a router that does not reach a cluster");
	ok(!no_cluster("XX000", "plproxy_remote_error"), "an error of the cluster");
	ok(!no_cluster("XX000", NULL), "or who knows");
	ok(!no_cluster("02000", "plproxy_error_with_state"), "an answer that PL/Proxy rejects");

	ok(timed_out("55P03", "ProcessInterrupts", 0, 0), "lock_timeout");
	ok(!timed_out("55P03", "do_acquire", 5000, 1000), "a holder that does not yield");
	ok(!timed_out("55P03", NULL, 5000, 1000), "or who knows");
	ok(timed_out("57014", "ProcessInterrupts", 1000, 1000), "statement_timeout");
	ok(!timed_out("57014", "ProcessInterrupts", 999, 1000), "cancelled before that");
	ok(!timed_out("57014", "ProcessInterrupts", 999, 0), "cancelled, and there is none");
	ok(!timed_out("57P01", "ProcessInterrupts", 5000, 1000), "terminated");

	dlock_error_make(&error, "55000", "one\ntwo", "more", "try");
	is(error.message, "one two (more)", "a message with its detail");
	is(error.hint, "try", "and a hint");
	dlock_error_parse(&error, "connection to server failed: FATAL:  53300: sorry, too many clients already\n"
					  "LOCATION:  InitProcess, proc.c:351\n");
	is(error.sqlstate, "53300", "the code of a failure to connect");
	is(error.message, "connection to server failed: FATAL: sorry, too many clients already", "and its text");
	ok(dlock_error_full(&error), "a server that is full");
	dlock_error_parse(&error, "connection failed: ERROR:  08P01: no more connections allowed (max_client_conn)\n");
	ok(dlock_error_full(&error) && dlock_error_turned_away(&error), "a pooler that is full");
	dlock_error_parse(&error, "connection failed: ERROR:  08P01: unsupported startup parameter: x\n");
	ok(!dlock_error_full(&error), "another complaint of a pooler");
	dlock_error_parse(&error, "connection to server on socket \"x\" failed: Resource temporarily unavailable\n");
	ok(dlock_error_full(&error), "a socket with too many that knock");
	dlock_error_parse(&error, "connection to server on socket \"x\" failed: Connection refused\n");
	ok(!dlock_error_full(&error), "no server");
	dlock_error_parse(&error, "failed: FATAL:  42704: no\nLOCATION:  f, guc.c:1\nfailed: FATAL:  42704: no\nLOCATION:  f, guc.c:1\n");
	is(error.message, "failed: FATAL: no", "of the first try");
	dlock_error_parse(&error, "failed: No such file\n\tIs the server running?\n");
	is(error.message, "failed: No such file Is the server running?", "without a code");
}

/* A server that takes connections and says nothing. */
static int
silent_server(int *port)
{
	struct sockaddr_in address;
	socklen_t	len = sizeof(address);
	int			fd = socket(AF_INET, SOCK_STREAM, 0);

	memset(&address, 0, sizeof(address));
	address.sin_family = AF_INET;
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (fd < 0 || bind(fd, (struct sockaddr *) &address, sizeof(address)) != 0 ||
		listen(fd, 100) != 0 || getsockname(fd, (struct sockaddr *) &address, &len) != 0)
		abort();
	*port = ntohs(address.sin_port);
	return fd;
}

/* Not before its time, and not much later: a slow machine has 5 s. */
static void
in_time(int64_t start, int64_t timeout, const char *what)
{
	int64_t		took = dlock_now() - start;

	ok(took >= timeout && took < timeout + 5000, "%s: back in time", what);
	if (took < timeout || took >= timeout + 5000)
		printf("# took %lld ms\n", (long long) took);
}

static void
test_no_answer(void)
{
	int			port;
	int			fd = silent_server(&port);
	char		conninfo[200];
	char		before[64];
	dlock_handle *handle;
	dlock_lock *lock;
	dlock_options options;
	dlock_error err;
	int64_t		start;

	snprintf(conninfo, sizeof(conninfo), "host=127.0.0.1 port=%d dbname=x user=x sslmode=disable", port);
	ok(dlock_open(conninfo, NULL, &handle, &err) == DLOCK_OK, "a server that does not answer");
	start = dlock_now();
	ok(dlock_ping(handle, 300, &err) == DLOCK_UNREACHABLE, "ping");
	in_time(start, 300, "ping");
	dlock_options_init(&options);
	options.timeout_ms = 300;
	start = dlock_now();
	ok(dlock_acquire(handle, "k", &options, &lock, &err) == DLOCK_UNREACHABLE && lock == NULL, "acquire");
	in_time(start, 300, "acquire");
	options.wait_ms = 200;
	start = dlock_now();
	ok(dlock_acquire(handle, "k", &options, &lock, &err) == DLOCK_UNREACHABLE, "acquire that waits");
	in_time(start, 300, "acquire that waits");
	options.wait_ms = -1;
	start = dlock_now();
	ok(dlock_acquire(handle, "k", &options, &lock, &err) == DLOCK_UNREACHABLE, "acquire without limit");
	in_time(start, 300, "acquire without limit");
	dlock_close(handle);

	/* the name of a host, found by the thread for that; no server on port 1 */
	snprintf(before, sizeof(before), "host=localhost,127.0.0.1 port=1,%d", port);
	ok(dlock_open(before, NULL, &handle, &err) == DLOCK_OK, "a name, and two hosts");
	start = dlock_now();
	ok(dlock_ping(handle, 400, &err) == DLOCK_UNREACHABLE, "ping");
	in_time(start, 400, "ping");
	dlock_close(handle);
	close(fd);

	ok(dlock_open("host=/nowhere", NULL, &handle, &err) == DLOCK_OK, "no server");
	ok(dlock_ping(handle, 0, &err) == DLOCK_UNREACHABLE, "ping, once");
	ok(strstr(err.message, "/nowhere") != NULL && strstr(err.message, "No such file") != NULL, "says why");
	ok(err.sqlstate[0] == '\0' && strchr(err.message, '\n') == NULL, "in a line");
	start = dlock_now();
	ok(dlock_ping(handle, 400, &err) == DLOCK_UNREACHABLE, "ping, retried");
	ok(dlock_now() - start >= 100, "for a while");
	dlock_close(handle);
}

int
main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	/* what the environment says is not for these tests */
	unsetenv("PGHOST");
	unsetenv("PGHOSTADDR");
	unsetenv("PGPORT");
	unsetenv("PGSERVICE");
	setenv("LC_ALL", "C", 1);

	test_names();
	test_util();
	test_arguments();
	test_events();
	test_hearing();
	test_errors();
	test_no_answer();
	test_ops();
	test_connect();
	test_batches();
	printf("1..%d\n", tests);
	return failed > 0;
}
