/*
 * list.h
 *	  Keys with their grants and queues, as ls, info and top show them.
 */
#ifndef DLOCK_CLI_LIST_H
#define DLOCK_CLI_LIST_H

#include "cli.h"

/* entry.c: one key */
typedef struct
{
	const char *key;
	const dlock_info *grants;	/* the oldest first; then what is pending */
	size_t		grant_count;	/* 0: free */
	int			waiting;
	int			watching;
	int64_t		longest_wait;

	/* top: how contended it has been lately; all zero elsewhere */
	int64_t		busy;
	int64_t		waits;
	int64_t		wait_time;
} Entry;

typedef struct
{
	dlock_info *infos;
	size_t		info_count;
	dlock_waiter *waiters;
	size_t		waiter_count;
	size_t		next_waiter;	/* those before it are in entries */
	char	   *after;			/* the last key so far; NULL: there is none */
	Entry	   *entries;
	size_t		count;
	size_t		size;			/* of the array */
	bool		more;			/* there may be keys that were not asked for */
} List;

/* keys of a page */
#define LIST_PAGE 1000

extern dlock_status list_get_waiters(dlock_handle *handle, const char *pattern,
									 List *list, dlock_error *err);
extern dlock_status list_get_page(dlock_handle *handle, const char *pattern,
								  int64_t max_keys, List *list, dlock_error *err);
extern dlock_status list_get_all(dlock_handle *handle, const char *pattern,
								 List *list, dlock_error *err);
extern dlock_status list_get_hot(dlock_handle *handle, const char *pattern,
								 int64_t max_keys, int64_t timeout, List *list,
								 dlock_error *err);
extern dlock_status list_get_one(dlock_handle *handle, const char *key,
								 int64_t timeout, List *list, dlock_error *err);
extern Entry *list_find(const List *list, const char *key);
extern Entry *list_add(List *list, const char *key);
extern bool matches_pattern(const char *key, const char *glob);
extern const dlock_info *shown_grant(const Entry *entry);
extern bool is_cooling(const dlock_info *info);
extern bool is_pending(const dlock_info *info);
extern const char *shown_text(const char *text, int hidden);
extern size_t holder_count(const Entry *entry);
extern const char *entry_state(const Entry *entry);
extern const char *entry_role(const Entry *entry);
extern const char *entry_owner(const Entry *entry);
extern const char *entry_value(const Entry *entry);
extern int64_t entry_remaining(const Entry *entry);
extern int64_t entry_held_for(const Entry *entry);
extern Colour state_colour(const char *state);
extern Colour entry_colour(const Entry *entry);
extern void text_holders(Text *to, const Entry *entry);
extern void text_slots(Text *to, int32_t slots);
extern void text_info(Text *out, const Entry *entry, const List *list);
extern void list_sort(List *list, const char *by);
extern void list_free(List *list);
extern const char *duration_string(int64_t ms, Text *buffer);
extern void json_entry(Text *json, const char *name, const Entry *entry);
extern void json_grant(Text *json, const dlock_info *info);
extern void json_waiter(Text *json, const dlock_waiter *waiter);
extern void json_time(Text *json, const char *name, int64_t unix_ms);
extern int64_t unix_now_ms(void);
extern void text_time(Text *text, int64_t unix_ms);

#endif							/* DLOCK_CLI_LIST_H */
