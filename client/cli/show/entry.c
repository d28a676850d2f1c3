/*
 * entry.c
 *	  What is shown of one key, which may have several holders.
 *
 * A key is one row of a table.  If it has several grants, a cell is about all of
 * them, or empty where they differ.
 */
#include "show/list.h"

#include <string.h>

bool
is_cooling(const dlock_info *info)
{
	return strcmp(info->state, "cooling") == 0;
}

/* Nobody's yet: an open transaction keeps the key busy. */
bool
is_pending(const dlock_info *info)
{
	return info->version == 0;
}

/* The grants come first, and then what is pending. */
static size_t
granted_count(const Entry *entry)
{
	size_t		count = entry->grant_count;

	while (count > 0 && is_pending(&entry->grants[count - 1]))
		count--;
	return count;
}

static bool
is_held(const dlock_info *info)
{
	return !is_cooling(info) && !is_pending(info);
}

/*
 * The grant that stands for the key: the newest that somebody holds, else the
 * newest, else what is pending.  NULL: there is none.
 */
const dlock_info *
shown_grant(const Entry *entry)
{
	const dlock_info *shown = NULL;
	size_t		i;

	for (i = 0; i < granted_count(entry); i++)
		if (shown == NULL || is_cooling(shown) || !is_cooling(&entry->grants[i]))
			shown = &entry->grants[i];
	return shown == NULL && entry->grant_count > 0 ? entry->grants : shown;
}

/* Grants that somebody holds. */
size_t
holder_count(const Entry *entry)
{
	size_t		count = 0;
	size_t		i;

	for (i = 0; i < entry->grant_count; i++)
		count += is_held(&entry->grants[i]);
	return count;
}

/* One of them is asked to yield, or is held, and so on. */
const char *
entry_state(const Entry *entry)
{
	static const char *const states[] = {"preempting", "held", "lapsed", "cooling", "pending"};
	size_t		state;
	size_t		i;

	for (state = 0; state < sizeof(states) / sizeof(states[0]); state++)
		for (i = 0; i < entry->grant_count; i++)
			if (strcmp(entry->grants[i].state, states[state]) == 0)
				return states[state];
	return entry->grant_count > 0 ? entry->grants[0].state : "not held";
}

Colour
state_colour(const char *state)
{
	if (strcmp(state, "preempting") == 0)
		return YELLOW;
	if (strcmp(state, "pending") == 0)
		return RED;
	return strcmp(state, "lapsed") == 0 || strcmp(state, "cooling") == 0 ? DIM : PLAIN;
}

/* What is not ours to see is not the same as nothing. */
const char *
shown_text(const char *text, int hidden)
{
	return hidden ? "(hidden)" : text;
}

static const char *
role_of(const dlock_info *info)
{
	return info->role;
}

static const char *
owner_of(const dlock_info *info)
{
	return shown_text(info->owner, info->hidden);
}

static const char *
value_of(const dlock_info *info)
{
	return shown_text(info->value, info->hidden);
}

/* NULL if there is none, or if they differ. */
static const char *
common(const Entry *entry, const char *(*text_of) (const dlock_info *))
{
	const char *text = granted_count(entry) > 0 ? text_of(entry->grants) : NULL;
	size_t		i;

	for (i = 1; i < granted_count(entry) && text != NULL; i++)
	{
		const char *other = text_of(&entry->grants[i]);

		if (other == NULL || strcmp(text, other) != 0)
			text = NULL;
	}
	return text;
}

const char *
entry_role(const Entry *entry)
{
	return common(entry, role_of);
}

const char *
entry_owner(const Entry *entry)
{
	return common(entry, owner_of);
}

const char *
entry_value(const Entry *entry)
{
	return common(entry, value_of);
}

/* The grant that expires first; NULL: there is none. */
static const dlock_info *
next_to_expire(const Entry *entry)
{
	const dlock_info *next = NULL;
	size_t		i;

	for (i = 0; i < granted_count(entry); i++)
		if (next == NULL || entry->grants[i].remaining_ms < next->remaining_ms)
			next = &entry->grants[i];
	return next;
}

/* -1: there is none. */
int64_t
entry_remaining(const Entry *entry)
{
	const dlock_info *next = next_to_expire(entry);

	return next != NULL ? next->remaining_ms : -1;
}

/* A lock that is renewed every third of its TTL always has more than half. */
static Colour
remaining_colour(const dlock_info *info)
{
	if (is_cooling(info) || strcmp(info->state, "lapsed") == 0)
		return DIM;
	if (info->remaining_ms * 4 < info->ttl_ms)
		return RED;
	if (info->remaining_ms * 2 < info->ttl_ms)
		return YELLOW;
	return GREEN;
}

Colour
entry_colour(const Entry *entry)
{
	const dlock_info *next = next_to_expire(entry);

	return next != NULL ? remaining_colour(next) : PLAIN;
}

/*
 * By the server's clock, whose time follows from the row itself, while the grant
 * lasts; -1: it does not.
 */
static int64_t
held_for(const dlock_info *info)
{
	int64_t		now = info->expires_at_ms - info->remaining_ms;

	if (!is_held(info) || strcmp(info->state, "lapsed") == 0)
		return -1;
	return now > info->acquired_at_ms ? now - info->acquired_at_ms : 0;
}

/* The longest; -1: nobody holds it, or it is not known. */
int64_t
entry_held_for(const Entry *entry)
{
	int64_t		longest = -1;
	size_t		i;

	for (i = 0; i < entry->grant_count; i++)
		if (held_for(&entry->grants[i]) > longest)
			longest = held_for(&entry->grants[i]);
	return longest;
}

/* How many hold it: "1", "2 of 3", "5 shared". */
void
text_holders(Text *to, const Entry *entry)
{
	int32_t		most = 0;
	bool		shared = false;
	size_t		i;

	for (i = 0; i < granted_count(entry); i++)
	{
		if (entry->grants[i].slots > most)
			most = entry->grants[i].slots;
		shared |= entry->grants[i].shared;
	}
	text_format(to, "%llu", (unsigned long long) holder_count(entry));
	if (shared)
		text_add(to, " shared");
	else if (most > 1)
		text_format(to, " of %d", (int) most);
}

/* What one of them has, or a waiter wants; 0: shared. */
void
text_slots(Text *to, int32_t slots)
{
	if (slots == 0)
		text_add(to, "shared");
	else if (slots == 1)
		text_add(to, "exclusive");
	else
		text_format(to, "1 of %d", (int) slots);
}

/* As the server has it: 1 is exclusive, null is shared. */
static void
json_slots(Text *json, int32_t slots, bool shared)
{
	if (shared)
		json_null(json, "slots");
	else
		json_number(json, "slots", slots);
	json_bool(json, "shared", shared);
}

/* 0: there is none. */
static void
json_pid(Text *json, const char *name, int32_t pid)
{
	if (pid != 0)
		json_number(json, name, pid);
	else
		json_null(json, name);
}

/* An open transaction, of which nothing else is known. */
static void
json_pending(Text *json, const dlock_info *info)
{
	json_null(json, "version");
	json_string(json, "state", info->state);
	json_pid(json, "using_pid", info->using_pid);
}

void
json_grant(Text *json, const dlock_info *info)
{
	if (is_pending(info))
	{
		json_pending(json, info);
		return;
	}
	json_number(json, "version", info->version);
	json_string(json, "role", info->role);
	json_string(json, "owner", info->owner);
	json_string(json, "value", info->value);
	json_string(json, "origin", info->origin);
	json_bool(json, "hidden", info->hidden);
	json_string(json, "state", info->state);
	json_slots(json, info->slots, info->shared);
	json_number(json, "priority", info->priority);
	json_time(json, "acquired_at", info->acquired_at_ms);
	json_time(json, "refreshed_at", info->refreshed_at_ms);
	json_time(json, "expires_at", info->expires_at_ms);
	json_seconds(json, "remaining", info->remaining_ms);
	json_seconds(json, "ttl", info->ttl_ms);
	json_pid(json, "pid", info->pid);
	json_pid(json, "using_pid", info->using_pid);
	if (info->has_requestor)
	{
		json_open(json, "requestor", '{');
		json_string(json, "owner", info->requestor_owner);
		json_number(json, "priority", info->requestor_priority);
		json_time(json, "since", info->requestor_since_ms);
		json_time(json, "deadline", info->requestor_deadline_ms);
		json_seconds(json, "left", info->requestor_left_ms);
		json_close(json, '}');
	}
	else
		json_null(json, "requestor");
}

/* Left open, for more.  What is not in "holders" is about the one that is shown. */
void
json_entry(Text *json, const char *name, const Entry *entry)
{
	size_t		i;

	json_open(json, name, '{');
	json_string(json, "key", entry->key);
	json_bool(json, "held", holder_count(entry) > 0);
	if (entry->grant_count > 0)
		json_grant(json, shown_grant(entry));
	json_open(json, "holders", '[');
	for (i = 0; i < entry->grant_count; i++)
	{
		json_open(json, NULL, '{');
		json_grant(json, &entry->grants[i]);
		json_close(json, '}');
	}
	json_close(json, ']');
	json_number(json, "waiting", entry->waiting);
	json_number(json, "watching", entry->watching);
}

void
json_waiter(Text *json, const dlock_waiter *waiter)
{
	json_open(json, NULL, '{');
	json_string(json, "key", waiter->key);
	if (waiter->pid != 0)
		json_number(json, "pid", waiter->pid);
	else
		json_null(json, "pid");
	if (waiter->ticket != 0)
		json_number(json, "ticket", waiter->ticket);
	else
		json_null(json, "ticket");
	json_string(json, "owner", waiter->owner);
	json_bool(json, "hidden", waiter->hidden);
	json_bool(json, "watches", waiter->watches);
	if (waiter->watches)
	{
		json_null(json, "position");
		json_null(json, "priority");
		json_null(json, "slots");
		json_null(json, "shared");
	}
	else
	{
		json_number(json, "position", waiter->position);
		json_number(json, "priority", waiter->priority);
		json_slots(json, waiter->slots, waiter->shared);
	}
	json_time(json, "since", waiter->since_ms);
	if (waiter->until_ms != 0)
		json_time(json, "until", waiter->until_ms);
	else
		json_null(json, "until");
	json_seconds(json, "waited", waiter->waited_ms);
	json_close(json, '}');
}
