/*
 * main.c
 *	  dlock: locks in PostgreSQL from the command line.
 */
#include "cli.h"

#include <locale.h>
#include <stdlib.h>
#include <string.h>

const char *current_command = NULL;

typedef int (*Command) (const Options *options);

static const Command commands[COMMANDS] = {
	[CMD_EXEC] = run_exec,
	[CMD_ELECT] = run_elect,
	[CMD_ACQUIRE] = run_acquire,
	[CMD_REFRESH] = run_refresh,
	[CMD_RELEASE] = run_release,
	[CMD_CHECK] = run_check,
	[CMD_HANDOVER] = run_handover,
	[CMD_INFO] = run_info,
	[CMD_LS] = run_ls,
	[CMD_TOP] = run_top,
	[CMD_WATCH] = run_watch,
	[CMD_FORCE_RELEASE] = run_force_release,
	[CMD_STATS] = run_stats,
	[CMD_HEALTH] = run_health,
	[CMD_SHARD] = run_shard,
};

int
main(int argc, char **argv)
{
	Options		options = {0};
	CommandId	id;
	int			code;

	fill_standard_files();

	/* for the width of characters; numbers stay as JSON needs them */
	setlocale(LC_CTYPE, "");

	if (argc < 2)
	{
		Text		summary = {0};

		text_summary(&summary);
		fputs(summary.data, stderr);
		text_free(&summary);
		return EXIT_USAGE;
	}
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-?") == 0 ||
		strcmp(argv[1], "help") == 0)
	{
		id = COMMANDS;
		if (strcmp(argv[1], "help") == 0 && argc > 2)
			id = parse_command(argv[2]);
		show_help(id);
		return close_output(0);
	}
	if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0)
	{
		int			version = dlock_lib_version();
		Text		line = {0};

		text_format(&line, "dlock %d.%d.%d\n", version / 10000,
					version / 100 % 100, version % 100);
		finish_output(&line);
		return close_output(0);
	}
	id = parse_command(argv[1]);
	current_command = command_name(id);
	parse_options(id, argc - 1, argv + 1, &options);
	code = commands[id] (&options);
	free(options.also);
	free(options.routers);

	/* if output was lost (a full disk), the exit code must tell */
	return close_output(code);
}
