/*
 * top.h
 *	  What the files of dlock top share.
 */
#ifndef DLOCK_CLI_TOP_H
#define DLOCK_CLI_TOP_H

#include "show/list.h"
#include "show/numbers.h"

#define LOCK_COLUMNS 11
#define HOT_COLUMNS 8

/* samples.c: what the server has counted, at several times */
#define MAX_SAMPLES 128
#define EVENTS 6

typedef struct
{
	int64_t		at;
	Numbers		numbers;
} Sample;

typedef struct
{
	Sample		list[MAX_SAMPLES];	/* the oldest first */
	int			count;

	/* since the first one: the wall clock, and the counters of events */
	int64_t		began;
	int64_t		events[EVENTS];
} Samples;

extern const char *const event_counters[EVENTS];	/* heading.c */

extern void samples_add(Samples *samples, Numbers *numbers);
extern void samples_free(Samples *samples);
extern const Numbers *samples_now(const Samples *samples);
extern const Numbers *samples_before(const Samples *samples);
extern const Numbers *samples_oldest(const Samples *samples);
extern int64_t samples_interval(const Samples *samples, bool oldest);
extern void samples_count_keys(const Samples *samples, List *list,
							   const char *pattern, List *hot);

/* What is being typed. */
typedef enum
{
	ASK_NOTHING,
	ASK_FILTER,
	ASK_KEY,					/* to be opened */
	ASK_REASON,					/* of a release by force */
	ASK_SURE					/* y or n */
} Question;

/* of an opened lock, this many sessions are looked at */
#define MAX_SESSIONS 4

typedef struct
{
	Options		options;
	Text		server;			/* database, host and port, as shown */
	char	   *filter;			/* a shell pattern, or NULL */
	Samples		samples;
	List		hot;			/* keys, the most contended first */
	int64_t		pause;			/* after the last look */
	bool		coloured;
	bool		live;
	int			width;			/* 0: without limit */
	int			height;

	/* what the screen shows */
	bool		hot_only;		/* instead of locks */
	bool		help;
	Question	asking;
	Text		typed;

	/* the lock that was opened; see opened.c */
	char	   *opened;			/* NULL: none */
	List		detail;
	Text		sessions;		/* what is known of them, printable */
	char	   *reason;			/* to release it by force */
	bool		release;		/* at the next look */
	Text		said;			/* what came of that */
	const List *list;			/* what keys there are to open */

	/* the position in the list; make_frame() keeps it in range */
	size_t		first;
	size_t		page;			/* the number of rows on the screen */

	/* the widths of columns so far, so that they do not move */
	int			lock_widths[LOCK_COLUMNS];
	int			hot_widths[HOT_COLUMNS];
} Top;

/* frame.c */
extern void make_frame(Top *top, Text *out, List *list,
					   const dlock_error *err);
extern void json_frame(const Top *top, Text *json, const List *list);

/* heading.c: the lines around the table */
extern void add_title(const Top *top, Text *out);
extern void add_summary(const Top *top, Text *out, const List *list);
extern void add_rates(const Top *top, Text *out);
extern void add_waits(const Top *top, Text *out);
extern void add_events(const Top *top, Text *out);
extern void add_status(const Top *top, Text *out, size_t total, bool more);
extern void add_help(const Top *top, Text *out);
extern void add_colour(const Top *top, Text *out, Colour colour);

extern void add_opened_status(const Top *top, Text *out);

/* opened.c: one lock */
extern void open_lock(Top *top);
extern void close_lock(Top *top);
extern dlock_status look_at_lock(Top *top, dlock_handle *handle, dlock_error *err);
extern void add_opened(const Top *top, Text *out);

/* screen.c: the terminal as a screen, and keys that are not characters */
#define KEY_UP 0x100
#define KEY_DOWN 0x101
#define KEY_PAGE_UP 0x102
#define KEY_PAGE_DOWN 0x103
#define KEY_HOME 0x104
#define KEY_END 0x105
#define KEY_ESCAPE 0x106

extern void screen_take(void);
extern void screen_restore(void);
extern void screen_suspend(void);
extern void screen_clear(void);
extern void screen_size(int *width, int *height);
extern bool screen_paint(const Text *frame, int height);
extern bool screen_read(void);
extern int	screen_key(void);	/* 0: no more */
extern bool screen_in_escape(void);
extern void screen_end_escape(void);

#endif							/* DLOCK_CLI_TOP_H */
