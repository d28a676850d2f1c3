/*-------------------------------------------------------------------------
 *
 * check.c
 *	  Checks the history of a torture run: was a lock granted twice, or did
 *	  anything that was acknowledged vanish?
 *
 *	  check [OPTION...] FOLDER|FILE...
 *
 * Exit status: 0 no violation, 1 violations, 2 the history is malformed or
 * incomplete, or could not be read.
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

Options		options = {
	.limit = 5,
	.bound_ms = 30000,
	.overtake = 100
};

static void
usage(FILE *to)
{
	fprintf(to,
			"Usage: check [OPTION...] FOLDER|FILE...\n"
			"Checks the history of a torture run; of a folder, all files *.history.\n"
			"\n"
			"  --limit N       show N violations of each property (5)\n"
			"  --slack-us N    overlaps and early ends of up to N us are no violation (0)\n"
			"  --bound-ms N    in peace a call is answered after its wait and N ms (30000)\n"
			"  --overtake N    in peace a waiter is overtaken N times at most (100)\n"
			"  --quiet         no report, only violations\n"
			"  --summary FILE  write the figures to FILE, as lines name=value\n"
			"  --help          this\n"
			"\n"
			"Exit status: 0 no violation, 1 violations, 2 malformed, incomplete or unreadable.\n");
}

static void
bad_usage(const char *what, const char *argument)
{
	fprintf(stderr, "check: %s \"%s\"\n", what, argument);
	usage(stderr);
	exit(2);
}

static int64_t
number(const char *name, const char *text, int64_t max)
{
	char	   *end;
	long long	n;

	if (text == NULL)
		bad_usage("a number must follow", name);
	errno = 0;
	n = strtoll(text, &end, 10);
	if (end == text || *end != '\0' || errno != 0 || n < 0 || n > max)
		bad_usage("not a number, or out of range:", text);
	return n;
}

/* Parse the options; returns the first argument that is not one. */
static int
parse_options(int argc, char **argv)
{
	int			i;

	for (i = 1; i < argc && argv[i][0] == '-'; i++)
	{
		const char *name = argv[i];
		const char *next = i + 1 < argc ? argv[i + 1] : NULL;

		if (strcmp(name, "--help") == 0)
		{
			usage(stdout);
			exit(0);
		}
		else if (strcmp(name, "--quiet") == 0)
		{
			options.quiet = true;
			continue;
		}
		else if (strcmp(name, "--limit") == 0)
			options.limit = (int) number(name, next, INT_MAX);
		else if (strcmp(name, "--slack-us") == 0)
			options.slack_us = number(name, next, INT32_MAX);
		else if (strcmp(name, "--bound-ms") == 0)
			options.bound_ms = number(name, next, INT32_MAX);
		else if (strcmp(name, "--overtake") == 0)
			options.overtake = (int) number(name, next, INT_MAX - 1);
		else if (strcmp(name, "--summary") == 0)
		{
			if (next == NULL)
				bad_usage("a file must follow", name);
			options.summary = next;
		}
		else
			bad_usage("unknown option", name);
		i++;
	}
	return i;
}

int
main(int argc, char **argv)
{
	int			first = parse_options(argc, argv);

	if (first >= argc)
	{
		usage(stderr);
		return 2;
	}
	for (int i = first; i < argc; i++)
		if (!check_read_path(argv[i]))
			return 2;
	check_read_done();
	if (!check_is_malformed())
		check_faults_prepare();
	if (check_is_malformed())
		return 2;

	check_outcomes();
	check_keys();
	check_answers();
	check_unique();
	check_whole();
	if (history.complete)
	{
		check_register();
		check_leaks();
	}

	if (!options.quiet)
		check_report();
	if (!history.complete)
		printf("incomplete: there is no line \"final end\"\n");
	if (options.summary != NULL && !check_write_summary(options.summary))
		return 2;
	if (fflush(stdout) != 0)
		return 2;
	if (check_violations() > 0)
		return 1;
	return history.complete ? 0 : 2;
}
