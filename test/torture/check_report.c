/*-------------------------------------------------------------------------
 *
 * check_report.c
 *	  Violations as they are found, and the report at the end.
 *
 * A violation is described in words, followed by the lines that show it, in
 * order of time and with the faults in between.
 *
 *-------------------------------------------------------------------------
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

#define MAX_FAULTS 12

static const char *const properties[PROPERTIES] = {
	"overlap", "versions", "vanish", "revive", "fence", "outcome", "starve", "leaks",
	"slots", "cooling", "whole"
};

static const char *const kinds[OP_KINDS] = {NULL, "acquire", "refresh", "release", "write", "check"};

static const char *const outcomes[OUTCOMES] = {
	"open", "granted", "busy", "held", "ok", "lost", "released", "not_held",
	"held_by_other", "fenced", "error", "unknown"
};

static uint64_t violations[PROPERTIES];

static Line *shown;
static uint32_t nshown;

bool
check_violation(Property property, const char *fmt,...)
{
	va_list		args;

	if (++violations[property] > (uint64_t) options.limit)
		return false;
	printf("violation of %s:\n  ", properties[property]);
	va_start(args, fmt);
	vprintf(fmt, args);
	va_end(args);
	printf("\n");
	nshown = 0;
	return true;
}

void
check_show_line(Line line)
{
	if (line == 0)
		return;
	check_grow(&shown, nshown, sizeof(Line));
	shown[nshown++] = line;
}

void
check_show_op(uint32_t op)
{
	check_show_line(history.ops[op].call_line);
	check_show_line(history.ops[op].done_line);
}

/* How it ended. */
void
check_show_client(uint32_t client)
{
	check_show_line(history.clients[client].killed_line);
}

static int
compare(const void *a, const void *b)
{
	Line		x = *(const Line *) a;
	Line		y = *(const Line *) b;
	Time		s = check_line_time(x);
	Time		t = check_line_time(y);

	if (s != t)
		return s < t ? -1 : 1;
	return x < y ? -1 : x > y;
}

static bool
is_final(Line line)
{
	Text		text = check_line_text(line);
	const char *space = memchr(text.at, ' ', text.len);

	return space != NULL && text.len - (size_t) (space - text.at) > 7 &&
		memcmp(space, " final ", 7) == 0;
}

void
check_violation_end(void)
{
	uint32_t	n;
	uint32_t	between = 0;

	if (nshown == 0)
		return;
	qsort(shown, nshown, sizeof(Line), compare);
	/* the final reads are not the end of what happened */
	for (n = nshown; n > 1 && is_final(shown[n - 1]);)
		n--;
	if (n > 1)
	{
		Time		from = check_line_time(shown[0]);
		Time		to = check_line_time(shown[n - 1]);

		for (uint32_t i = check_faults_after(from); i < history.nfaults && history.faults[i].at <= to; i++)
			if (++between <= MAX_FAULTS)
				check_show_line(history.faults[i].line);
		qsort(shown, nshown, sizeof(Line), compare);
	}
	for (uint32_t i = 0; i < nshown; i++)
	{
		Text		text = check_line_text(shown[i]);

		if (i == 0 || shown[i] != shown[i - 1])
			printf("    %.*s\n", TEXT_ARGS(text));
	}
	if (between > MAX_FAULTS)
		printf("    and %u more faults in between\n", between - MAX_FAULTS);
}

uint64_t
check_violations(void)
{
	uint64_t	sum = 0;

	for (int i = 0; i < PROPERTIES; i++)
		sum += violations[i];
	return sum;
}

/*
 * The report
 */

static uint64_t ops[OP_KINDS][OUTCOMES];

/* what was granted; one grant may count several times */
typedef enum Grants
{
	GRANTS_EXCLUSIVE,
	GRANTS_READER,
	GRANTS_PLACE,
	GRANTS_GROUP,
	GRANTS_AT_LEAST,
	GRANTS_DELAY,
	GRANTS
} Grants;

static const char *const grant_names[GRANTS] = {
	"exclusive", "reader", "place", "group", "at_least", "delay"
};

static uint64_t grants[GRANTS];

typedef struct Count
{
	Text		name;
	uint64_t	n;
} Count;

static Count *faults;
static uint32_t nfaults;

static void
count_grant(const Op *op)
{
	grants[op->slots == EXCLUSIVE ? GRANTS_EXCLUSIVE :
		   op->slots == READER ? GRANTS_READER : GRANTS_PLACE]++;
	grants[GRANTS_GROUP] += op->with != 0;
	grants[GRANTS_AT_LEAST] += op->at_least != 0;
	grants[GRANTS_DELAY] += op->delay != 0;
}

static void
count(void)
{
	memset(ops, 0, sizeof(ops));
	memset(grants, 0, sizeof(grants));
	for (uint32_t i = 0; i < history.nops; i++)
		if (history.ops[i].call_line != 0)
		{
			ops[history.ops[i].kind][history.ops[i].outcome]++;
			if (history.ops[i].outcome == OUT_GRANTED)
				count_grant(&history.ops[i]);
		}
	nfaults = 0;
	for (uint32_t i = 0; i < history.nfaults; i++)
	{
		const Fault *fault = &history.faults[i];
		uint32_t	j = 0;

		if (fault->heal || fault->healthy)
			continue;
		while (j < nfaults && !(faults[j].name.len == fault->kind.len &&
								memcmp(faults[j].name.at, fault->kind.at, fault->kind.len) == 0))
			j++;
		if (j == nfaults)
		{
			check_grow(&faults, nfaults, sizeof(Count));
			faults[nfaults].name = fault->kind;
			faults[nfaults++].n = 0;
		}
		faults[j].n++;
	}
}

void
check_report(void)
{
	const char *comma = "";

	count();
	printf("history: %llu lines, %u clients, %u keys, %.1f s, mode %s\n",
		   (unsigned long long) history.nlines, history.nclients, history.nkeys,
		   (double) (history.last - history.first) / 1e6, history.sync ? "sync" : "async");
	for (int i = 1; i < OP_KINDS; i++)
	{
		printf("%s:", kinds[i]);
		comma = " ";
		for (int j = 0; j < OUTCOMES; j++)
			if (ops[i][j] > 0)
			{
				printf("%s%s %llu", comma, outcomes[j], (unsigned long long) ops[i][j]);
				comma = ", ";
			}
		printf("%s\n", comma[0] == ' ' ? " none" : "");
	}
	printf("grants:");
	for (int i = 0; i < GRANTS; i++)
		printf("%s %s %llu", i > 0 ? "," : "", grant_names[i], (unsigned long long) grants[i]);
	printf("\nfaults:");
	for (uint32_t i = 0; i < nfaults; i++)
		printf("%s %.*s %llu", i > 0 ? "," : "", TEXT_ARGS(faults[i].name),
			   (unsigned long long) faults[i].n);
	printf("%s\n", nfaults == 0 ? " none" : "");
	printf("violations:");
	comma = " ";
	for (int i = 0; i < PROPERTIES; i++)
		if (violations[i] > 0)
		{
			printf("%s%s %llu", comma, properties[i], (unsigned long long) violations[i]);
			comma = ", ";
		}
	printf("%s\n", check_violations() == 0 ? " none" : "");
}

/* name=value, for scripts */
bool
check_write_summary(const char *path)
{
	FILE	   *file = fopen(path, "w");

	if (file == NULL)
	{
		perror(path);
		return false;
	}
	count();
	fprintf(file, "mode=%s\nlines=%llu\nclients=%u\nkeys=%u\nduration_us=%lld\noperations=%u\n",
			history.sync ? "sync" : "async", (unsigned long long) history.nlines,
			history.nclients, history.nkeys, (long long) (history.last - history.first),
			history.nops);
	for (int i = 1; i < OP_KINDS; i++)
		for (int j = 0; j < OUTCOMES; j++)
			if (ops[i][j] > 0)
				fprintf(file, "operations_%s_%s=%llu\n", kinds[i], outcomes[j],
						(unsigned long long) ops[i][j]);
	for (int i = 0; i < GRANTS; i++)
		fprintf(file, "grants_%s=%llu\n", grant_names[i], (unsigned long long) grants[i]);
	for (uint32_t i = 0; i < nfaults; i++)
		fprintf(file, "faults_%.*s=%llu\n", TEXT_ARGS(faults[i].name),
				(unsigned long long) faults[i].n);
	for (int i = 0; i < PROPERTIES; i++)
		fprintf(file, "violations_%s=%llu\n", properties[i], (unsigned long long) violations[i]);
	fprintf(file, "violations=%llu\ncomplete=%d\n", (unsigned long long) check_violations(),
			history.complete);
	if (fclose(file) != 0)
	{
		perror(path);
		return false;
	}
	return true;
}
