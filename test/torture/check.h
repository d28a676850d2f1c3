/*-------------------------------------------------------------------------
 *
 * check.h
 *	  What the files of the history checker share.
 *
 *	  check.c			options, order of the checks
 *	  check_read.c		files, and what is kept of their lines
 *	  check_parse.c		one line
 *	  check_faults.c	when there was peace, and when commits may be lost
 *	  check_keys.c		key by key, the points in time at which something happens
 *	  check_lease.c		vanish, revive
 *	  check_table.c		the leases of a key
 *	  check_versions.c	versions
 *	  check_overlap.c	overlap
 *	  check_places.c	slots, cooling, whole
 *	  check_wait.c		starve
 *	  check_register.c	fence, and the outcome of writes
 *	  check_final.c		outcome, leaks
 *	  check_report.c	violations, and the report
 *
 * test/torture/README describes the format and the properties, and explains why each
 * check raises no false alarm and misses no violation.
 *
 *-------------------------------------------------------------------------
 */
#ifndef CHECK_H
#define CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define check_printf(f, a) __attribute__((format(printf, f, a)))
#else
#define check_printf(f, a)
#endif

#define NEVER INT64_MAX
#define NONE UINT32_MAX

/* Microseconds of CLOCK_MONOTONIC. */
typedef int64_t Time;

/* Where a line is: the number of its file, and its offset; 0 is none. */
typedef uint64_t Line;

/* Part of a file, which stays mapped. */
typedef struct Text
{
	const char *at;
	size_t		len;
} Text;

typedef enum OpKind
{
	OP_NONE,
	OP_ACQUIRE,
	OP_REFRESH,
	OP_RELEASE,
	OP_WRITE,
	OP_CHECK,
	OP_KINDS
} OpKind;

typedef enum Outcome
{
	OUT_OPEN,					/* no completion */
	OUT_GRANTED,
	OUT_BUSY,
	OUT_HELD,
	OUT_OK,
	OUT_LOST,
	OUT_RELEASED,
	OUT_NOT_HELD,
	OUT_HELD_BY_OTHER,
	OUT_FENCED,
	OUT_ERROR,
	OUT_UNKNOWN,
	OUTCOMES
} Outcome;

/* How many may hold the key: what was asked for. */
#define READER 0
#define EXCLUSIVE 1

/* An operation: a call and its completion. */
typedef struct Op
{
	Time		called;
	Time		done;			/* NEVER: open */
	Line		call_line;
	Line		done_line;
	int64_t		version;
	int64_t		base;			/* when the TTL began */
	uint64_t	owner;			/* hash; of a write: its n */
	int64_t		scratch;		/* used by the current check */
	uint32_t	client;			/* index */
	uint32_t	number;
	uint32_t	key;			/* index */
	int32_t		ttl;			/* milliseconds */
	int32_t		wait;			/* milliseconds, -1: without limit */
	int32_t		priority;
	int32_t		slots;			/* EXCLUSIVE, READER, or one of N */
	int32_t		at_least;		/* milliseconds */
	int32_t		delay;			/* milliseconds */
	uint32_t	with;			/* number of the first acquire of its group;
								 * of a check: of the acquire before it; or 0 */
	uint8_t		kind;
	uint8_t		outcome;
	bool		session;
} Op;

typedef struct Client
{
	int64_t		number;
	Time		begun;			/* NEVER: no such line */
	Time		ended;
	Time		killed;
	Time		last;			/* of its lines */
	Line		begun_line;
	Line		ended_line;
	Line		killed_line;
	Line		last_line;
} Client;

typedef struct Key
{
	Text		name;
	uint32_t	first;			/* of its operations in by_key */
	uint32_t	nops;
} Key;

/* What a client believes, besides its calls. */
typedef enum NoteKind
{
	NOTE_GONE,					/* the server says that it is lost */
	NOTE_GAVE_UP,				/* the library says so, because the time is up */
	NOTE_RENEWED,
	NOTE_OWNS
} NoteKind;

typedef struct Note
{
	Time		at;
	Line		line;
	int64_t		version;
	Time		base;
	uint32_t	client;
	uint32_t	key;
	int32_t		ttl;
	uint8_t		kind;
} Note;

typedef struct Fault
{
	Time		at;
	Line		line;
	Text		kind;
	uint64_t	target;			/* hash of node, client and link */
	Time		until;			/* when it was undone; at, if it does not last */
	bool		heal;
	bool		healthy;
	bool		lasts;			/* its kind can be healed */
	bool		node;			/* it is one of a node */
	bool		split;
	bool		promote;
	bool		lost;
	bool		stale;
} Fault;

/* A row of the register at the end. */
typedef struct Row
{
	Line		line;
	int64_t		n;
	int64_t		token;
	int64_t		client;
	int64_t		op;
	uint32_t	key;
	uint32_t	write;			/* its operation, or NONE */
} Row;

typedef struct FinalVersion
{
	Line		line;
	int64_t		version;
	uint32_t	key;
} FinalVersion;

typedef struct FinalCount
{
	Line		line;
	Text		what;
	int64_t		value;
	int64_t		expect;
} FinalCount;

/* Impossible lines: two answers to a call, or an answer without a call. */
typedef struct Extra
{
	Line		line;
	uint32_t	op;
} Extra;

/*
 * The whole history.  Arrays grow by check_grow().
 */
typedef struct History
{
	Op		   *ops;
	Client	   *clients;
	Key		   *keys;
	Note	   *notes;			/* by key and time, once read */
	Fault	   *faults;			/* by time, once read */
	Row		   *rows;
	FinalVersion *versions;
	FinalCount *counts;
	Extra	   *extras;
	uint32_t   *by_key;			/* operations, by key */
	uint32_t	nops;
	uint32_t	nclients;
	uint32_t	nkeys;
	uint32_t	nnotes;
	uint32_t	nfaults;
	uint32_t	nrows;
	uint32_t	nversions;
	uint32_t	ncounts;
	uint32_t	nextras;
	uint64_t	nlines;
	Time		first;
	Time		last;
	bool		has_mode;
	bool		sync;
	bool		complete;		/* "final end" is there */
} History;

typedef struct Options
{
	int			limit;			/* violations to show for each property */
	int64_t		slack_us;
	int64_t		bound_ms;
	int			overtake;
	bool		quiet;
	const char *summary;
} Options;

extern History history;
extern Options options;

/*
 * check_read.c
 */
extern void *check_alloc(size_t n, size_t size);
extern void check_grow(void *array, uint32_t n, size_t size);
extern bool check_read_path(const char *path);
extern void check_read_done(void);
extern uint64_t check_hash(uint64_t seed, const char *at, size_t len);
extern uint32_t check_key_index(Text name);
extern uint32_t check_client_index(int64_t number);
extern uint32_t check_op_index(uint32_t client, uint32_t number, bool add);
extern uint32_t check_find_op(int64_t client, int64_t number);
extern Text check_line_text(Line line);
extern const char *check_line_file(Line line, uint64_t *number);
extern Time check_line_time(Line line);
extern void check_malformed(Line line, const char *fmt,...) check_printf(2, 3);
extern bool check_is_malformed(void);

/*
 * check_parse.c
 */
extern void check_parse_line(Line line, const char *at, const char *end);

/*
 * check_faults.c
 */
extern void check_faults_prepare(void);
extern bool check_calm(Time from, Time to);
extern bool check_may_be_lost(Time from, Time to);
extern bool check_write_may_be_lost(Time called);
extern bool check_may_be_stale(Time from, Time to);
extern Time check_peace(Time from, Time to, Time *start);
extern Time check_peace_since(Time at);
extern uint32_t check_faults_after(Time at);

/*
 * check_keys.c
 */
typedef enum What
{
	POINT_CALL,
	POINT_DONE,
	POINT_NOTE
} What;

/* Something happens to a key. */
typedef struct Point
{
	Time		at;
	Line		line;			/* the order within one file is known */
	uint32_t	index;			/* of the operation or note */
	uint8_t		what;
} Point;

extern void check_keys(void);

/* check_lease.c, check_wait.c: called for each key */
extern void check_lease(uint32_t key, const Point *points, uint32_t n);
extern void check_wait(uint32_t key, const Point *points, uint32_t n);

/*
 * check_overlap.c
 */

/* A time in which a client believes that it holds a key. */
typedef struct Belief
{
	Time		from;
	Time		to;
	int64_t		version;
	Line		ended;			/* why it ends: a line, or 0 */
	Line		renewed;		/* why it holds: a line, or the next */
	uint32_t	last;
	uint32_t	grant;
	uint32_t	client;
	bool		session;
	bool		shared;
} Belief;

extern void check_overlap_add(const Belief *belief);
extern void check_overlap(uint32_t key);

/*
 * check_places.c
 */

/* How long the server keeps a grant, at the least. */
typedef struct Hold
{
	int64_t		version;
	Time		end;			/* of the grant */
	Time		busy;			/* of what it leaves behind */
	uint32_t	grant;
	uint32_t	release;		/* or NONE */
	bool		shared;
} Hold;

extern void check_places_add(const Hold *hold);
extern void check_places(uint32_t key);
extern void check_whole(void);

/*
 * check_versions.c
 */
extern void check_versions_begin(void);
extern void check_versions_called(uint32_t op);
extern void check_versions_granted(uint32_t op, bool again);
extern void check_unique(void);

/* check_wait.c */
extern void check_answers(void);

/* check_register.c */
extern void check_register(void);

/* check_final.c */
extern void check_outcomes(void);
extern void check_leaks(void);

/*
 * check_report.c
 */
typedef enum Property
{
	OVERLAP,
	VERSIONS,
	VANISH,
	REVIVE,
	FENCE,
	OUTCOME,
	STARVE,
	LEAKS,
	SLOTS,
	COOLING,
	WHOLE,
	PROPERTIES
} Property;

/*
 * A violation: begin with the words, add the lines that show it, end.  False if
 * enough have been shown and this one is only counted.
 */
extern bool check_violation(Property property, const char *fmt,...) check_printf(2, 3);
extern void check_show_line(Line line);
extern void check_show_op(uint32_t op);
extern void check_show_client(uint32_t client);
extern void check_violation_end(void);
extern uint64_t check_violations(void);
extern void check_report(void);
extern bool check_write_summary(const char *path);

#define TEXT_ARGS(text) (int) (text).len, (text).at
#define KEY_ARGS(key) TEXT_ARGS(history.keys[key].name)
#define CLIENT(op) ((long long) history.clients[(op)->client].number)

#endif							/* CHECK_H */
