/*
 * top.h
 *	  What the two files of dlock top share.
 */
#ifndef DLOCK_CLI_TOP_H
#define DLOCK_CLI_TOP_H

#include "cli.h"

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
	bool		utf8;
	bool		coloured;
	bool		live;
	int			width;			/* 0: without limit */
	int			height;
} Top;

extern void make_frame(const Top *top, Text *out, List *list,
					   const dlock_error *err);
extern void json_frame(Text *json, const List *list);

#endif							/* DLOCK_CLI_TOP_H */
