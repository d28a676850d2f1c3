/*-------------------------------------------------------------------------
 *
 * check_parse.c
 *	  One line of a history.
 *
 * A line is words, and after them fields name=value in any order; fields that
 * we do not know are skipped.  Anything else that is not in the format makes
 * the history malformed: a checker that guesses proves nothing.
 *
 *-------------------------------------------------------------------------
 */
#include <string.h>

#include "check.h"

#define MAX_WORDS 32

static const char *const kinds[OP_KINDS] = {NULL, "acquire", "refresh", "release", "write", "check"};

static const char *const outcomes[OUTCOMES] = {
	NULL, "granted", "busy", "held", "ok", "lost", "released", "not_held",
	"held_by_other", "fenced", "error", "unknown"
};

#define BIT(outcome) (1 << (outcome))
#define ALWAYS (BIT(OUT_ERROR) | BIT(OUT_UNKNOWN))

static const int allowed[OP_KINDS] = {
	0,
	ALWAYS | BIT(OUT_GRANTED) | BIT(OUT_BUSY),
	ALWAYS | BIT(OUT_OK) | BIT(OUT_LOST),
	ALWAYS | BIT(OUT_RELEASED) | BIT(OUT_NOT_HELD) | BIT(OUT_HELD_BY_OTHER),
	ALWAYS | BIT(OUT_OK) | BIT(OUT_FENCED),
	ALWAYS | BIT(OUT_HELD) | BIT(OUT_NOT_HELD) | BIT(OUT_HELD_BY_OTHER),
};

/* The line that is being read. */
static Line line;
static Time at;
static Text words[MAX_WORDS];
static int	nwords;
static bool bad;

static void
malformed(const char *why)
{
	if (!bad)
		check_malformed(line, "%s", why);
	bad = true;
}

static bool
is(Text text, const char *word)
{
	size_t		len = strlen(word);

	return text.len == len && memcmp(text.at, word, len) == 0;
}

static bool
to_number(Text text, int64_t *number)
{
	bool		negative = text.len > 0 && text.at[0] == '-';
	size_t		i = negative;

	*number = 0;
	if (i == text.len || text.len - i > 18)
		return false;
	for (; i < text.len; i++)
	{
		if (text.at[i] < '0' || text.at[i] > '9')
			return false;
		*number = *number * 10 + (text.at[i] - '0');
	}
	if (negative)
		*number = -*number;
	return true;
}

static Text
word(int i)
{
	static const Text none = {"", 0};

	return i < nwords ? words[i] : none;
}

static int64_t
word_number(int i, int64_t max)
{
	int64_t		number;

	if (!to_number(word(i), &number) || number < 0 || number > max)
	{
		malformed("a number is missing or out of range");
		return 0;
	}
	return number;
}

/* All remaining words must be fields. */
static void
only_fields(int first)
{
	for (int i = first; i < nwords; i++)
	{
		const char *equals = memchr(words[i].at, '=', words[i].len);

		if (equals == NULL || equals == words[i].at)
			malformed("a word that is no name=value");
	}
}

static bool
field(const char *name, Text *value)
{
	size_t		len = strlen(name);
	bool		found = false;

	for (int i = 1; i < nwords; i++)
	{
		if (words[i].len <= len || words[i].at[len] != '=' ||
			memcmp(words[i].at, name, len) != 0)
			continue;
		if (found)
			malformed("a field is there twice");
		value->at = words[i].at + len + 1;
		value->len = words[i].len - len - 1;
		found = true;
	}
	return found;
}

static Text
need(const char *name)
{
	Text		value = {"", 0};

	if (!field(name, &value) || value.len == 0)
		malformed("a field is missing or empty");
	return value;
}

static bool
field_number(const char *name, int64_t min, int64_t max, int64_t *number)
{
	Text		value;

	if (!field(name, &value))
		return false;
	if (!to_number(value, number) || *number < min || *number > max)
	{
		malformed("a field is not a number, or out of range");
		*number = min;
	}
	return true;
}

static int64_t
need_number(const char *name, int64_t min, int64_t max)
{
	int64_t		number = min;

	if (!field_number(name, min, max, &number))
		malformed("a field is missing");
	return number;
}

static int
find(Text text, const char *const *names, int n)
{
	for (int i = 1; i < n; i++)
		if (is(text, names[i]))
			return i;
	malformed("an unknown word");
	return 0;
}

static Client *
client_line(uint32_t index)
{
	Client	   *client = &history.clients[index];

	if (at >= client->last)
	{
		client->last = at;
		client->last_line = line;
	}
	return client;
}

/* The client and number that a call and its completion have in common. */
static Op  *
find_op(int *kind)
{
	int64_t		client = word_number(2, NONE - 1);
	int64_t		number = word_number(3, NONE - 1);
	uint32_t	index;

	*kind = find(word(4), kinds, OP_KINDS);
	if (bad)
		return NULL;
	index = check_client_index(client);
	client_line(index);
	/* take the index first, because the array may move */
	index = check_op_index(index, (uint32_t) number, true);
	return &history.ops[index];
}

/* What an acquire asks for. */
static void
parse_request(Op *op)
{
	int64_t		number = 0;

	op->slots = EXCLUSIVE;
	op->wait = (int32_t) need_number("wait", -1, INT32_MAX);
	if (field_number("priority", 0, INT32_MAX, &number))
		op->priority = (int32_t) number;
	if (field_number("session", 0, 1, &number))
		op->session = number == 1;
	if (field_number("slots", READER, INT32_MAX, &number))
		op->slots = (int32_t) number;
	if (field_number("at_least", 0, INT32_MAX, &number))
		op->at_least = (int32_t) number;
	if (field_number("delay", 0, INT32_MAX, &number))
		op->delay = (int32_t) number;
	if (field_number("with", 1, NONE - 1, &number))
		op->with = (uint32_t) number;
}

static void
parse_call(void)
{
	int			kind;
	Op		   *op = find_op(&kind);
	Text		key = need("key");
	Text		owner = {"", 0};

	only_fields(5);
	if (kind == OP_ACQUIRE || kind == OP_CHECK)
		owner = need("owner");
	if (bad || op == NULL)
		return;
	if (op->call_line != 0)
	{
		malformed("this client has made a call of that number before");
		return;
	}
	if (op->done_line != 0 && op->kind != kind)
	{
		malformed("its completion is that of another kind of call");
		return;
	}
	op->kind = (uint8_t) kind;
	op->called = at;
	op->call_line = line;
	op->key = check_key_index(key);
	if (owner.len > 0)
		op->owner = check_hash(op->key + 1, owner.at, owner.len);
	if (kind == OP_ACQUIRE)
		parse_request(op);
	else if (kind == OP_CHECK)
		op->with = (uint32_t) need_number("after", 1, NONE - 1);
	else
		op->version = need_number("version", 0, INT64_MAX);
	if (kind == OP_ACQUIRE || kind == OP_REFRESH)
		op->ttl = (int32_t) need_number("ttl", 1, INT32_MAX);
	if (op->base == 0)
		op->base = at;
}

static void
parse_done(void)
{
	int			kind;
	Op		   *op = find_op(&kind);
	int			outcome = find(word(5), outcomes, OUTCOMES);
	int64_t		number;

	only_fields(6);
	if (bad || op == NULL)
		return;
	if ((allowed[kind] & BIT(outcome)) == 0)
		malformed("a call of this kind has no such outcome");
	if (op->kind != OP_NONE && op->kind != kind)
		malformed("it completes another kind of call");
	if (outcome == OUT_ERROR)
		need("state");
	if (bad)
		return;
	if (op->done_line != 0)
	{
		check_grow(&history.extras, history.nextras, sizeof(Extra));
		history.extras[history.nextras].line = line;
		history.extras[history.nextras++].op = (uint32_t) (op - history.ops);
		return;
	}
	op->kind = (uint8_t) kind;
	op->outcome = (uint8_t) outcome;
	op->done = at;
	op->done_line = line;
	if (outcome == OUT_GRANTED)
	{
		op->version = need_number("version", 1, INT64_MAX);
		if (field_number("base", 1, INT64_MAX, &number))
			op->base = number;
	}
	if (kind == OP_WRITE && outcome == OUT_OK)
		op->owner = (uint64_t) need_number("n", 1, INT64_MAX);
}

static void
parse_note(void)
{
	Note		note;
	int64_t		client = word_number(2, NONE - 1);
	Text		key = need("key");
	Text		reason;

	only_fields(3);
	memset(&note, 0, sizeof(note));
	note.at = at;
	note.line = line;
	note.version = need_number("version", 0, INT64_MAX);
	if (is(word(1), "lost"))
	{
		/* a lease ends if the server says so, not if the library assumes it */
		reason = need("reason");
		note.kind = is(reason, "expired") || is(reason, "forced") ||
			is(reason, "preempted") ? NOTE_GONE : NOTE_GAVE_UP;
	}
	else if (is(word(1), "renewed"))
	{
		note.kind = NOTE_RENEWED;
		note.base = need_number("base", 0, INT64_MAX);
		note.ttl = (int32_t) need_number("ttl", 1, INT32_MAX);
	}
	else
		note.kind = NOTE_OWNS;
	if (bad)
		return;
	note.key = check_key_index(key);
	note.client = check_client_index(client);
	client_line(note.client);
	check_grow(&history.notes, history.nnotes, sizeof(Note));
	history.notes[history.nnotes++] = note;
}

static void
parse_client(void)
{
	bool		begins = is(word(1), "begin");
	int64_t		number = word_number(2, NONE - 1);
	Client	   *client;

	only_fields(3);
	if (bad)
		return;
	client = client_line(check_client_index(number));
	if ((begins ? client->begun : client->ended) != NEVER)
		malformed("for the second time");
	else if (begins)
	{
		client->begun = at;
		client->begun_line = line;
	}
	else
	{
		client->ended = at;
		client->ended_line = line;
	}
}

static void
parse_fault(void)
{
	Fault		fault;
	Text		value;
	int64_t		number;

	memset(&fault, 0, sizeof(fault));
	fault.at = at;
	fault.line = line;
	fault.kind.at = "";
	fault.healthy = is(word(1), "healthy");
	fault.heal = is(word(1), "heal");
	if (!fault.healthy)
	{
		fault.kind = word(2);
		if (fault.kind.len == 0 || memchr(fault.kind.at, '=', fault.kind.len) != NULL)
			malformed("the kind of the fault is missing");
	}
	only_fields(fault.healthy ? 2 : 3);
	if (bad)
		return;
	for (int i = 0; i < 3; i++)
	{
		static const char *const names[] = {"node", "client", "link"};

		if (field(names[i], &value))
		{
			fault.target = check_hash(fault.target + (uint64_t) i + 1, value.at, value.len);
			fault.node = fault.node || i == 0;
		}
	}
	fault.split = !fault.heal && is(fault.kind, "split-brain");
	if (!fault.heal && is(fault.kind, "promote"))
	{
		fault.promote = true;
		fault.lost = need_number("lost", 0, 1) == 1;
		if (field_number("stale", 0, 1, &number))
			fault.stale = number == 1;
	}
	if (!fault.heal && is(fault.kind, "client-kill"))
	{
		Client	   *client;
		uint32_t	index;

		number = need_number("client", 0, NONE - 1);
		if (bad)
			return;
		index = check_client_index(number);
		client = &history.clients[index];
		if (at < client->killed)
		{
			client->killed = at;
			client->killed_line = line;
		}
	}
	if (bad)
		return;
	check_grow(&history.faults, history.nfaults, sizeof(Fault));
	history.faults[history.nfaults++] = fault;
}

static void
parse_mode(void)
{
	bool		sync = is(word(2), "sync");

	only_fields(3);
	if (!sync && !is(word(2), "async"))
		malformed("the mode is sync or async");
	else if (history.has_mode && history.sync != sync)
		malformed("there is another mode before");
	history.has_mode = true;
	history.sync = sync;
}

static void
parse_final(void)
{
	only_fields(3);
	if (is(word(2), "register"))
	{
		Row			row;
		Text		key = need("key");

		memset(&row, 0, sizeof(row));
		row.line = line;
		row.n = need_number("n", INT64_MIN + 1, INT64_MAX);
		row.token = need_number("token", INT64_MIN + 1, INT64_MAX);
		row.client = need_number("client", -1, NONE - 1);
		row.op = need_number("op", -1, NONE - 1);
		if (bad)
			return;
		row.key = check_key_index(key);
		check_grow(&history.rows, history.nrows, sizeof(Row));
		history.rows[history.nrows++] = row;
	}
	else if (is(word(2), "version"))
	{
		FinalVersion version;
		Text		key = need("key");

		version.line = line;
		version.version = need_number("version", 0, INT64_MAX);
		if (bad)
			return;
		version.key = check_key_index(key);
		check_grow(&history.versions, history.nversions, sizeof(FinalVersion));
		history.versions[history.nversions++] = version;
	}
	else if (is(word(2), "count"))
	{
		FinalCount	count;

		count.line = line;
		count.what = need("what");
		count.value = need_number("value", INT64_MIN + 1, INT64_MAX);
		count.expect = need_number("expect", INT64_MIN + 1, INT64_MAX);
		if (bad)
			return;
		check_grow(&history.counts, history.ncounts, sizeof(FinalCount));
		history.counts[history.ncounts++] = count;
	}
	else if (is(word(2), "end"))
		history.complete = true;
	else
		malformed("an unknown word");
}

void
check_parse_line(Line where, const char *start, const char *end)
{
	static const struct
	{
		const char *name;
		void		(*parse) (void);
	}			lines[] =

	{
		{"call", parse_call}, {"done", parse_done}, {"lost", parse_note},
		{"renewed", parse_note}, {"owns", parse_note}, {"begin", parse_client},
		{"end", parse_client}, {"fault", parse_fault}, {"heal", parse_fault},
		{"healthy", parse_fault}, {"mode", parse_mode}, {"final", parse_final}
	};
	bool		last = false;

	line = where;
	bad = false;
	nwords = 0;
	for (const char *p = start; !last && nwords < MAX_WORDS; nwords++)
	{
		const char *space = memchr(p, ' ', (size_t) (end - p));

		last = space == NULL;
		words[nwords].at = p;
		words[nwords].len = (size_t) ((last ? end : space) - p);
		if (words[nwords].len == 0 || memchr(p, '\0', words[nwords].len) != NULL)
		{
			malformed("words are separated by single spaces");
			return;
		}
		p = last ? end : space + 1;
	}
	if (!last)
	{
		malformed("too many words");
		return;
	}
	if (!to_number(words[0], &at) || at < 0)
	{
		malformed("a line begins with the time");
		return;
	}
	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
		if (is(word(1), lines[i].name))
		{
			lines[i].parse();
			if (at < history.first || history.nlines == 0)
				history.first = at;
			if (at > history.last)
				history.last = at;
			return;
		}
	malformed("an unknown word");
}
