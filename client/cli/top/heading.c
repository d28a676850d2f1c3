/*
 * heading.c
 *	  The lines around the table of dlock top: what the server counts, and which
 *	  keys do what.
 */
#include "top/top.h"

#include <limits.h>
#include <string.h>
#include <time.h>

#define MAX_PARTS 10

/*
 * A line of several parts.  If there is no room for all of them, those of the
 * highest rank are left out; rank 0 always stays.
 */
typedef struct
{
	struct
	{
		Text		text;
		int			rank;
		Colour		colour;
	}			parts[MAX_PARTS];
	int			count;
} Line;

/* What ends badly, in the order in which it is shown. */
const char *const event_counters[EVENTS] = {
	"timeouts", "deadlocks", "expired", "fence_rejected", "preempted", "forced"
};

void
add_colour(const Top *top, Text *out, Colour colour)
{
	if (top->coloured)
		text_add(out, colour_code(colour));
}

static Text *
part(Line *line, int rank, Colour colour)
{
	line->parts[line->count].rank = rank;
	line->parts[line->count].colour = colour;
	return &line->parts[line->count++].text;
}

/* Leave out parts until the others fit.  Returns their width. */
static int
fit(const Top *top, Line *line)
{
	for (;;)
	{
		int			used = 0;
		int			last = -1;
		int			i;

		for (i = 0; i < line->count; i++)
		{
			if (line->parts[i].text.data == NULL)
				continue;
			used += shown_width(line->parts[i].text.data);
			if (line->parts[i].rank > 0 &&
				(last < 0 || line->parts[i].rank > line->parts[last].rank))
				last = i;
		}
		if (top->width == 0 || used <= top->width || last < 0)
			return used;
		text_free(&line->parts[last].text);
	}
}

/* A bar extends over the whole width of the screen. */
static void
add_line(const Top *top, Text *out, Line *line, bool bar)
{
	int			used = fit(top, line);
	int			i;

	if (bar)
		add_colour(top, out, REVERSE);
	for (i = 0; i < line->count; i++)
	{
		Text	   *text = &line->parts[i].text;
		Colour		colour = line->parts[i].colour;

		if (text->data != NULL && !bar && colour != PLAIN)
			add_colour(top, out, colour);
		if (text->data != NULL)
			text_add(out, text->data);
		if (text->data != NULL && !bar && colour != PLAIN)
			add_colour(top, out, PLAIN);
		text_free(text);
	}
	if (bar && top->live && used < top->width)
		text_format(out, "%*s", top->width - used, "");
	if (bar)
		add_colour(top, out, PLAIN);
	text_add(out, "\n");
}

static void
text_clock(Text *to, int64_t unix_ms, bool with_date)
{
	time_t		seconds = (time_t) (unix_ms / 1000);
	struct tm	tm;
	char		buffer[32];

	strftime(buffer, sizeof(buffer), with_date ? "%Y-%m-%d %H:%M:%S" : "%H:%M:%S",
			 localtime_r(&seconds, &tm));
	text_add(to, buffer);
}

void
add_title(const Top *top, Text *out)
{
	Line		line = {0};
	Text	   *text;

	text_add(part(&line, 0, PLAIN), " dlock top");
	if (top->server.len > 0)
		text_format(part(&line, 1, PLAIN), "  %s", top->server.data);
	text = part(&line, 2, PLAIN);
	text_add(text, "  ");
	text_clock(text, unix_now_ms(), false);
	if (top->filter != NULL)
	{
		text = part(&line, 1, PLAIN);
		text_add(text, "  keys: ");
		(void) printable_cut(text, top->filter, top->width > 0 ? top->width / 3 : INT_MAX);
	}
	if (top->hot_only)
		text_add(part(&line, 3, PLAIN), "  hot keys");
	else
		text_format(part(&line, 3, PLAIN), "  order: %s", top->options.sort);
	if (top->live)
	{
		text = part(&line, 4, PLAIN);
		text_add(text, "  every ");
		text_duration(text, top->pause > top->options.interval ?
					  top->pause : top->options.interval);
	}
	add_line(top, out, &line, true);
}

/* What there is of each state. */
typedef struct
{
	uint64_t	held;
	uint64_t	preempting;
	uint64_t	lapsed;
	uint64_t	cooling;
	uint64_t	pending;
	uint64_t	waiting;
	uint64_t	watching;
	int64_t		longest;
	int64_t		next;			/* expiry; -1: none */
} Summary;

static void
sum_up(const List *list, Summary *sum)
{
	size_t		i;

	memset(sum, 0, sizeof(*sum));
	sum->next = -1;
	for (i = 0; i < list->count; i++)
	{
		const Entry *entry = &list->entries[i];

		sum->waiting += (uint64_t) entry->waiting;
		sum->watching += (uint64_t) entry->watching;
		if (entry->longest_wait > sum->longest)
			sum->longest = entry->longest_wait;
	}
	for (i = 0; i < list->info_count; i++)
	{
		const dlock_info *info = &list->infos[i];
		bool		lapsed = strcmp(info->state, "lapsed") == 0;

		sum->pending += is_pending(info);
		sum->cooling += is_cooling(info);
		if (is_pending(info) || is_cooling(info))
			continue;
		sum->held++;
		sum->lapsed += lapsed;
		sum->preempting += strcmp(info->state, "preempting") == 0;
		if (!lapsed && (sum->next < 0 || info->remaining_ms < sum->next))
			sum->next = info->remaining_ms;
	}
}

/* Those that are not there are not mentioned. */
static void
add_some(Line *line, int rank, Colour colour, uint64_t count, const char *what)
{
	Text	   *text;

	if (count == 0)
		return;
	text = part(line, rank, colour);
	text_add(text, ", ");
	text_count(text, count);
	text_format(text, " %s", what);
}

void
add_summary(const Top *top, Text *out, const List *list)
{
	Line		line = {0};
	Text	   *text = part(&line, 0, BOLD);
	Summary		sum;

	sum_up(list, &sum);
	text_count(text, sum.held);
	text_add(text, list->more ? "+ held" : " held");
	add_some(&line, 6, PLAIN, sum.preempting, "of them asked to yield");
	add_some(&line, 8, PLAIN, sum.lapsed, "of them lapsed");
	add_some(&line, 7, PLAIN, sum.cooling, "cooling");
	add_some(&line, 2, RED, sum.pending, "pending");
	text = part(&line, 1, sum.waiting > 0 ? YELLOW : PLAIN);
	text_add(text, ", ");
	text_count(text, sum.waiting);
	text_add(text, " waiting");
	if (sum.waiting > 0)
	{
		text = part(&line, 3, PLAIN);
		text_add(text, " (the longest for ");
		text_duration(text, sum.longest);
		text_add(text, ")");
	}
	add_some(&line, 5, PLAIN, sum.watching, "watching");
	if (sum.next >= 0)
	{
		text = part(&line, 4, PLAIN);
		text_add(text, ", next expiry in ");
		text_duration(text, sum.next);
	}
	add_line(top, out, &line, false);
}

/*
 * What was added to a counter.  Backends count without locks, so while one of
 * them ends, a counter may seem to go back for a moment.
 */
static int64_t
added(int64_t now, int64_t before)
{
	return now > before ? now - before : 0;
}

/* Per second since the last sample; without one, how many since the reset. */
static void
text_rate(Text *to, const Samples *samples, int64_t now, int64_t before)
{
	int64_t		tenths;

	if (samples_before(samples) == NULL)
	{
		text_count(to, (uint64_t) now);
		return;
	}
	tenths = (added(now, before) * 10000 + samples_interval(samples, false) / 2) /
		samples_interval(samples, false);
	text_count(to, (uint64_t) tenths / 10);
	/* nobody needs the fraction of a large number */
	if (tenths > 0 && tenths < 100)
		text_format(to, ".%d", (int) (tenths % 10));
}

static void
add_rate(Line *line, const Samples *samples, int rank, Colour colour, const char *name)
{
	const Numbers *before = samples_before(samples);
	Text	   *text = part(line, rank, colour);

	if (line->count > 1)
		text_add(text, ", ");
	text_rate(text, samples, numbers_counter(samples_now(samples), name),
			  before != NULL ? numbers_counter(before, name) : 0);
	text_format(text, " %s%s", name, before != NULL ? "/s" : "");
}

static void
text_since_reset(Text *to, const Samples *samples)
{
	text_add(to, " since ");
	text_clock(to, numbers_counter(samples_now(samples), "stats_reset"), true);
}

/* The whole database, whatever the filter is. */
void
add_rates(const Top *top, Text *out)
{
	Line		line = {0};

	add_rate(&line, &top->samples, 0, BOLD, "grants");
	add_rate(&line, &top->samples, 4, PLAIN, "renewals");
	add_rate(&line, &top->samples, 3, PLAIN, "releases");
	add_rate(&line, &top->samples, 1, PLAIN, "busy");
	if (samples_before(&top->samples) == NULL)
		text_since_reset(part(&line, 2, PLAIN), &top->samples);
	add_line(top, out, &line, false);
}

/*
 * How long waits took that have ended: since the last sample, or if there were
 * none, within the window, or since the reset.
 */
void
add_waits(const Top *top, Text *out)
{
	const Samples *samples = &top->samples;
	const Numbers *now = samples_now(samples);
	const Numbers *before = samples_before(samples);
	Line		line = {0};
	Text	   *text = part(&line, 0, BOLD);
	Percentile	half;
	Percentile	most;
	bool		oldest = false;

	text_rate(text, samples, numbers_waits(now, before), 0);
	text_add(text, before != NULL ? " waits/s" : " waits");
	if (before != NULL && numbers_waits(now, before) == 0)
	{
		oldest = true;
		before = samples_oldest(samples);
		if (numbers_waits(now, before) == 0)
			before = NULL;
	}
	if (numbers_percentile(now, before, 50, &half) &&
		numbers_percentile(now, before, 99, &most))
	{
		text = part(&line, 2, PLAIN);
		text_add(text, ", half ");
		text_percentile(text, &half);
		text = part(&line, 1, PLAIN);
		text_add(text, ", 99 % ");
		text_percentile(text, &most);
		text = part(&line, 3, PLAIN);
		if (before == NULL)
			text_since_reset(text, samples);
		else
		{
			text_add(text, " in ");
			text_duration(text, samples_interval(samples, oldest));
		}
	}
	add_line(top, out, &line, false);
}

/*
 * What ended badly since we began to look, and of that since the last look.  Without a
 * last sample, since the reset.
 */
void
add_events(const Top *top, Text *out)
{
	static const char *const names[EVENTS] = {
		"timeouts", "deadlocks", "expired", "fenced off", "preempted", "forced"
	};
	const Samples *samples = &top->samples;
	const Numbers *before = samples_before(samples);
	Line		line = {0};
	Text	   *text;
	int			i;

	for (i = 0; i < EVENTS; i++)
	{
		int64_t		count = numbers_counter(samples_now(samples), event_counters[i]);
		int64_t		lately = before == NULL ? 0 :
			added(count, numbers_counter(before, event_counters[i]));

		text = part(&line, i, lately > 0 ? RED : PLAIN);
		if (i > 0)
			text_add(text, ", ");
		text_count(text, (uint64_t) (before == NULL ? count : added(count, samples->events[i])));
		text_format(text, " %s", names[i]);
		if (lately > 0)
			text_format(text, " (+%lld)", (long long) lately);
	}
	text = part(&line, EVENTS, PLAIN);
	if (before == NULL)
		text_since_reset(text, samples);
	else
	{
		text_add(text, " since ");
		text_clock(text, samples->began, false);
	}
	add_line(top, out, &line, false);
}

/* What is typed, with a cursor. */
static void
add_question(const Top *top, Text *out)
{
	Line		line = {0};
	Text	   *text = part(&line, 0, PLAIN);

	text_add(text, top->asking == ASK_FILTER ? " keys: " : top->asking == ASK_KEY ? " open: " :
			 top->asking == ASK_REASON ? " reason for a release by force: " :
			 " take the lock away from its holders (y/n)? ");
	(void) printable_cut(text, top->typed.data != NULL ? top->typed.data : "",
						 top->width - shown_width(text->data) - 1);
	text_add(text, "_");
	text_add(part(&line, 1, PLAIN), top->asking == ASK_FILTER ? "   Enter show" :
			 top->asking == ASK_KEY ? "   Enter open" : "");
	text_add(part(&line, 2, PLAIN), "   Esc back");
	if (top->asking == ASK_FILTER)
		text_add(part(&line, 3, PLAIN), "   a prefix; * any text, ? a character");
	if (top->asking == ASK_KEY)
		text_add(part(&line, 3, PLAIN), "   how the key begins; nothing: the first one");
	add_line(top, out, &line, true);
}

/* What was done with an opened lock, or can be. */
void
add_opened_status(const Top *top, Text *out)
{
	Line		line = {0};

	if (top->asking != ASK_NOTHING)
	{
		add_question(top, out);
		return;
	}
	text_add(part(&line, 0, PLAIN), " Esc back");
	text_add(part(&line, 2, PLAIN), "   x release by force");
	if (top->said.len > 0)
		text_format(part(&line, 1, PLAIN), "   %s", top->said.data);
	add_line(top, out, &line, true);
}

/* The position in the list, and what the keys do. */
void
add_status(const Top *top, Text *out, size_t total, bool more)
{
	Line		line = {0};
	Text	   *text;
	size_t		last = top->first + top->page;

	if (top->asking)
	{
		add_question(top, out);
		return;
	}
	if (last > total)
		last = total;
	text = part(&line, 0, PLAIN);
	text_add(text, " ");
	text_count(text, total > 0 ? top->first + 1 : 0);
	text_add(text, "-");
	text_count(text, last);
	text_add(text, " of ");
	text_count(text, total);
	if (more)
		text_add(text, "+");
	text_add(part(&line, 1, PLAIN), "   q quit");
	text_add(part(&line, 2, PLAIN), "   ? help");
	text_format(part(&line, 4, PLAIN), "   %s scroll",
				locale_is_utf8() ? "\xe2\x86\x91\xe2\x86\x93" : "j k");
	text_add(part(&line, 3, PLAIN), "   / filter");
	text_add(part(&line, 5, PLAIN), "   Enter open");
	text_add(part(&line, 5, PLAIN), top->hot_only ? "   c locks" : "   c hot keys");
	if (!top->hot_only)
		text_add(part(&line, 6, PLAIN), "   s order");
	text_add(part(&line, 7, PLAIN), "   +/- interval");
	add_line(top, out, &line, true);
}

/* The screen of help.  40 columns and 22 lines are enough for it. */
void
add_help(const Top *top, Text *out)
{
	static const struct
	{
		const char *name;
		const char *text;
	}			lines[] = {
		{"q", "quit"},
		{"/", "show keys that begin with what"},
		{"", "you type (* any text, ? one"},
		{"", "character); nothing shows all"},
		{"Enter", "open a lock; there, x releases"},
		{"c", "hot keys, or the locks again"},
		{"s", "next order"},
		{"+ -", "longer or shorter interval"},
		{"space", "look now"},
		{"j k", "up and down, as the arrows"},
		{"f b", "by pages, as PgDn and PgUp"},
		{"g G", "begin and end, as Home and End"},
		{"busy", "tries that found a key busy"},
		{"waits", "how long those took that have"},
		{"", "ended: half and 99 % of them"},
		{"expired", "neither released nor renewed"},
		{"(+1)", "of these since the last look"},
		{"pending", "an open transaction keeps it"},
		{"", "busy; dlock info KEY says which"},
		{"hot keys", "counts are of the last minute;"},
		{"", "above, of the whole database"},
	};
	size_t		i;

	for (i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
	{
		add_colour(top, out, BOLD);
		text_format(out, "%-9s", lines[i].name);
		add_colour(top, out, PLAIN);
		text_format(out, "%s\n", lines[i].text);
	}
}
