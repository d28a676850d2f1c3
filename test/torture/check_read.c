/*-------------------------------------------------------------------------
 *
 * check_read.c
 *	  Reads a history into memory: files, names, operations.
 *
 * Files stay mapped: lines are shown from the mapping, and names are kept as
 * pointers.  An operation is kept as one struct Op for its two lines.  These and
 * one index for each key take nearly all of the memory, about 50 bytes per line.
 *
 *-------------------------------------------------------------------------
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

#define LINE_BITS 40
#define LINE_MASK (((uint64_t) 1 << LINE_BITS) - 1)
#define SUFFIX ".history"
#define SHOW_MALFORMED 20

History		history;

typedef struct File
{
	char	   *name;
	const char *data;
	size_t		size;
} File;

static File *files;
static uint32_t nfiles;
static uint64_t nmalformed;

/* Open addressing, of indexes; grown when it is half full. */
typedef struct Table
{
	uint32_t   *slots;
	uint32_t	size;
} Table;

static Table keys;
static Table clients;
static Table ops;

void *
check_alloc(size_t n, size_t size)
{
	void	   *p = calloc(n > 0 ? n : 1, size);

	if (p == NULL)
	{
		fprintf(stderr, "check: out of memory\n");
		exit(2);
	}
	return p;
}

/* Make room for one more in an array of n, which is doubled when it is full. */
void
check_grow(void *array, uint32_t n, size_t size)
{
	void	  **p = array;

	if (n == 0 || (n >= 16 && (n & (n - 1)) == 0))
	{
		size_t		room = n < 16 ? 16 : (size_t) n * 2;

		if (n >= NONE / 2 || (*p = realloc(*p, room * size)) == NULL)
		{
			fprintf(stderr, "check: out of memory\n");
			exit(2);
		}
	}
}

/* FNV-1a, with a final mixing step */
uint64_t
check_hash(uint64_t seed, const char *at, size_t len)
{
	uint64_t	h = seed ^ 0xcbf29ce484222325ULL;

	for (size_t i = 0; i < len; i++)
		h = (h ^ (unsigned char) at[i]) * 0x100000001b3ULL;
	h ^= h >> 32;
	h *= 0xd6e8feb86659fd93ULL;
	return h ^ h >> 32;
}

static uint64_t
hash_number(uint64_t a, uint64_t b)
{
	uint64_t	h = (a + 1) * 0x9e3779b97f4a7c15ULL + b;

	h ^= h >> 32;
	h *= 0xd6e8feb86659fd93ULL;
	return h ^ h >> 32;
}

static uint64_t
hash_key(uint32_t i)
{
	return check_hash(0, history.keys[i].name.at, history.keys[i].name.len);
}

static uint64_t
hash_client(uint32_t i)
{
	return hash_number((uint64_t) history.clients[i].number, 0);
}

static uint64_t
hash_op(uint32_t i)
{
	return hash_number(history.ops[i].client, history.ops[i].number);
}

/* Make room for one more in a table of n. */
static void
table_grow(Table *table, uint32_t n, uint64_t (*hash) (uint32_t))
{
	if (n + 1 <= table->size / 2)
		return;
	free(table->slots);
	table->size = table->size == 0 ? 1024 : table->size * 2;
	table->slots = check_alloc(table->size, sizeof(uint32_t));
	memset(table->slots, 0xff, table->size * sizeof(uint32_t));
	for (uint32_t i = 0; i < n; i++)
	{
		uint32_t	at = (uint32_t) hash(i) & (table->size - 1);

		while (table->slots[at] != NONE)
			at = (at + 1) & (table->size - 1);
		table->slots[at] = i;
	}
}

uint32_t
check_key_index(Text name)
{
	uint32_t	at;

	table_grow(&keys, history.nkeys, hash_key);
	at = (uint32_t) check_hash(0, name.at, name.len) & (keys.size - 1);
	for (; keys.slots[at] != NONE; at = (at + 1) & (keys.size - 1))
	{
		const Key  *key = &history.keys[keys.slots[at]];

		if (key->name.len == name.len && memcmp(key->name.at, name.at, name.len) == 0)
			return keys.slots[at];
	}
	check_grow(&history.keys, history.nkeys, sizeof(Key));
	memset(&history.keys[history.nkeys], 0, sizeof(Key));
	history.keys[history.nkeys].name = name;
	return keys.slots[at] = history.nkeys++;
}

static uint32_t
find_client(int64_t number, uint32_t *at)
{
	table_grow(&clients, history.nclients, hash_client);
	*at = (uint32_t) hash_number((uint64_t) number, 0) & (clients.size - 1);
	for (; clients.slots[*at] != NONE; *at = (*at + 1) & (clients.size - 1))
		if (history.clients[clients.slots[*at]].number == number)
			break;
	return clients.slots[*at];
}

uint32_t
check_client_index(int64_t number)
{
	uint32_t	at;
	Client	   *client;

	if (find_client(number, &at) != NONE)
		return clients.slots[at];
	check_grow(&history.clients, history.nclients, sizeof(Client));
	client = &history.clients[history.nclients];
	memset(client, 0, sizeof(Client));
	client->number = number;
	client->begun = client->ended = client->killed = NEVER;
	client->last = INT64_MIN;
	return clients.slots[at] = history.nclients++;
}

/* An operation is created by its first line, whichever that is. */
uint32_t
check_op_index(uint32_t client, uint32_t number, bool add)
{
	uint32_t	at;
	Op		   *op;

	table_grow(&ops, history.nops, hash_op);
	at = (uint32_t) hash_number(client, number) & (ops.size - 1);
	for (; ops.slots[at] != NONE; at = (at + 1) & (ops.size - 1))
	{
		op = &history.ops[ops.slots[at]];
		if (op->client == client && op->number == number)
			return ops.slots[at];
	}
	if (!add)
		return NONE;
	check_grow(&history.ops, history.nops, sizeof(Op));
	op = &history.ops[history.nops];
	memset(op, 0, sizeof(Op));
	op->client = client;
	op->number = number;
	op->key = NONE;
	op->done = NEVER;
	return ops.slots[at] = history.nops++;
}

/* The call that this client made under this number; NONE: it did not. */
uint32_t
check_find_op(int64_t client, int64_t number)
{
	uint32_t	at;
	uint32_t	index = find_client(client, &at);
	uint32_t	op;

	if (index == NONE || number < 0 || number >= NONE)
		return NONE;
	op = check_op_index(index, (uint32_t) number, false);
	return op != NONE && history.ops[op].call_line != 0 ? op : NONE;
}

/*
 * Lines
 */

Text
check_line_text(Line line)
{
	const File *file = &files[line >> LINE_BITS];
	size_t		offset = (line & LINE_MASK) - 1;
	const char *end = memchr(file->data + offset, '\n', file->size - offset);
	Text		text = {file->data + offset, 0};

	text.len = (end != NULL ? (size_t) (end - file->data) : file->size) - offset;
	return text;
}

/* The name of its file, and its number there. */
const char *
check_line_file(Line line, uint64_t *number)
{
	const File *file = &files[line >> LINE_BITS];
	size_t		offset = (line & LINE_MASK) - 1;

	*number = 1;
	for (size_t i = 0; i < offset; i++)
		*number += file->data[i] == '\n';
	return file->name;
}

/* It has been read before, so it does begin with a number. */
Time
check_line_time(Line line)
{
	Text		text = check_line_text(line);
	Time		at = 0;

	for (size_t i = 0; i < text.len && text.at[i] != ' '; i++)
		at = at * 10 + (text.at[i] - '0');
	return at;
}

void
check_malformed(Line line, const char *fmt,...)
{
	va_list		args;

	if (++nmalformed > SHOW_MALFORMED)
		return;
	printf("malformed: ");
	if (line != 0)
	{
		uint64_t	number;
		const char *name = check_line_file(line, &number);

		printf("%s:%llu: ", name, (unsigned long long) number);
	}
	va_start(args, fmt);
	vprintf(fmt, args);
	va_end(args);
	printf("\n");
	if (line != 0)
	{
		Text		text = check_line_text(line);

		printf("  %.*s\n", (int) (text.len > 200 ? 200 : text.len), text.at);
	}
	if (nmalformed == SHOW_MALFORMED)
		printf("malformed: ... and perhaps more\n");
}

bool
check_is_malformed(void)
{
	return nmalformed > 0;
}

static bool
fail(const char *path)
{
	fprintf(stderr, "check: %s: %s\n", path, strerror(errno));
	return false;
}

static bool
read_file(const char *path)
{
	struct stat st;
	File	   *file;
	const char *end;
	int			fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return fail(path);
	if (fstat(fd, &st) != 0)
	{
		close(fd);
		return fail(path);
	}
	check_grow(&files, nfiles, sizeof(File));
	file = &files[nfiles];
	file->size = (size_t) st.st_size;
	file->data = NULL;
	if (file->size > 0)
	{
		void	   *data = mmap(NULL, file->size, PROT_READ, MAP_PRIVATE, fd, 0);

		if (data == MAP_FAILED)
		{
			close(fd);
			return fail(path);
		}
		file->data = data;
	}
	close(fd);
	file->name = strdup(path);
	if (file->name == NULL || nfiles >= (uint32_t) 1 << (64 - LINE_BITS - 1) ||
		file->size >= LINE_MASK)
	{
		fprintf(stderr, "check: %s: too many files, or too large\n", path);
		return false;
	}
	nfiles++;

	if (file->size == 0)
		return true;
	end = file->data + file->size;
	for (const char *at = file->data; at < end;)
	{
		const char *stop = memchr(at, '\n', (size_t) (end - at));
		Line		line = (uint64_t) (nfiles - 1) << LINE_BITS | (uint64_t) (at - file->data + 1);

		if (stop == NULL)
		{
			check_malformed(line, "the last line has no end");
			break;
		}
		check_parse_line(line, at, stop);
		history.nlines++;
		at = stop + 1;
	}
	return true;
}

static int
is_history(const struct dirent *entry)
{
	size_t		len = strlen(entry->d_name);
	size_t		suffix = strlen(SUFFIX);

	return len > suffix && strcmp(entry->d_name + len - suffix, SUFFIX) == 0;
}

/* A file, or all "*.history" of a folder; false: could not be read. */
bool
check_read_path(const char *path)
{
	struct dirent **names;
	struct stat st;
	bool		good = true;
	int			n;

	if (stat(path, &st) != 0)
		return fail(path);
	if (!S_ISDIR(st.st_mode))
		return read_file(path);

	n = scandir(path, &names, is_history, alphasort);
	if (n < 0)
		return fail(path);
	if (n == 0)
	{
		fprintf(stderr, "check: %s: there is no file *" SUFFIX "\n", path);
		good = false;
	}
	for (int i = 0; i < n; i++)
	{
		size_t		size = strlen(path) + strlen(names[i]->d_name) + 2;
		char	   *file = check_alloc(size, 1);

		snprintf(file, size, "%s/%s", path, names[i]->d_name);
		good = read_file(file) && good;
		free(file);
		free(names[i]);
	}
	free(names);
	return good;
}

/*
 * Checks that need the whole history, and the indexes
 */

static int
compare_notes(const void *a, const void *b)
{
	const Note *x = a;
	const Note *y = b;

	if (x->key != y->key)
		return x->key < y->key ? -1 : 1;
	if (x->at != y->at)
		return x->at < y->at ? -1 : 1;
	return x->line < y->line ? -1 : x->line > y->line;
}

static int
compare_faults(const void *a, const void *b)
{
	const Fault *x = a;
	const Fault *y = b;

	if (x->at != y->at)
		return x->at < y->at ? -1 : 1;
	return x->line < y->line ? -1 : x->line > y->line;
}

static void
check_clients(void)
{
	for (uint32_t i = 0; i < history.nclients; i++)
	{
		const Client *client = &history.clients[i];

		if (client->begun == NEVER && client->last_line != 0)
			check_malformed(client->last_line, "client %lld has no line \"begin\"",
							(long long) client->number);
	}
	for (uint32_t i = 0; i < history.nops; i++)
	{
		const Op   *op = &history.ops[i];
		const Client *client = &history.clients[op->client];

		if (op->call_line != 0 && op->called > client->ended)
			check_malformed(op->call_line, "client %lld had ended", (long long) client->number);
		if (op->call_line != 0 && op->done < op->called)
			check_malformed(op->done_line, "the completion is earlier than the call");
	}
}

void
check_read_done(void)
{
	uint32_t	first = 0;

	check_clients();
	if (!history.has_mode)
		check_malformed(0, "there is no line \"mode\"");
	if (history.nnotes > 0)
		qsort(history.notes, history.nnotes, sizeof(Note), compare_notes);
	if (history.nfaults > 0)
		qsort(history.faults, history.nfaults, sizeof(Fault), compare_faults);

	/* operations by key; those without a call have none */
	history.by_key = check_alloc(history.nops, sizeof(uint32_t));
	for (uint32_t i = 0; i < history.nops; i++)
		if (history.ops[i].key != NONE)
			history.keys[history.ops[i].key].nops++;
	for (uint32_t i = 0; i < history.nkeys; i++)
	{
		history.keys[i].first = first;
		first += history.keys[i].nops;
		history.keys[i].nops = 0;
	}
	for (uint32_t i = 0; i < history.nops; i++)
		if (history.ops[i].key != NONE)
		{
			Key		   *key = &history.keys[history.ops[i].key];

			history.by_key[key->first + key->nops++] = i;
		}
}
