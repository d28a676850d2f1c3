/*
 * top.h
 *	  What the files of dlock top share.
 */
#ifndef DLOCK_CLI_TOP_H
#define DLOCK_CLI_TOP_H

#include "cli.h"

#define LOCK_COLUMNS 11
#define HOT_COLUMNS 4

typedef struct
{
	char	   *key;
	int64_t		version;
	double		changes;
} Seen;

typedef struct
{
	Options		options;
	Seen	   *seen;			/* by key */
	size_t		seen_count;
	int64_t		seen_at;
	bool		coloured;
	bool		live;
	int			width;			/* 0: without limit */
	int			height;

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
extern void json_frame(Text *json, const List *list);

/* screen.c: the terminal as a screen, and keys that are not characters */
#define KEY_UP 0x100
#define KEY_DOWN 0x101
#define KEY_PAGE_UP 0x102
#define KEY_PAGE_DOWN 0x103
#define KEY_HOME 0x104
#define KEY_END 0x105

extern void screen_take(void);
extern void screen_restore(void);
extern void screen_suspend(void);
extern void screen_clear(void);
extern void screen_size(int *width, int *height);
extern bool screen_paint(const Text *frame, int height);
extern bool screen_read(void);
extern int	screen_key(void);	/* 0: no more */

#endif							/* DLOCK_CLI_TOP_H */
