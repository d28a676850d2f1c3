/*-------------------------------------------------------------------------
 *
 * check_final.c
 *	  What holds across all keys: every call has one outcome, and nothing is left
 *	  behind.
 *
 *-------------------------------------------------------------------------
 */
#include "check.h"

void
check_outcomes(void)
{
	for (uint32_t i = 0; i < history.nextras; i++)
	{
		const Op   *op = &history.ops[history.extras[i].op];

		if (check_violation(OUTCOME, "Call %u of client %lld has a second completion.",
							op->number, CLIENT(op)))
		{
			check_show_op(history.extras[i].op);
			check_show_line(history.extras[i].line);
			check_violation_end();
		}
	}
	for (uint32_t i = 0; i < history.nclients; i++)
	{
		const Client *client = &history.clients[i];

		if (client->begun != NEVER && client->ended == NEVER && client->killed == NEVER &&
			check_violation(OUTCOME, "Client %lld neither ended nor was killed.",
							(long long) client->number))
		{
			check_show_line(client->begun_line);
			check_show_line(client->last_line);
			check_violation_end();
		}
	}
	for (uint32_t i = 0; i < history.nops; i++)
	{
		const Op   *op = &history.ops[i];
		const Client *client = &history.clients[op->client];

		if (op->call_line == 0)
		{
			if (check_violation(OUTCOME, "Call %u of client %lld has a completion, but was never made.",
								op->number, CLIENT(op)))
			{
				check_show_op(i);
				check_violation_end();
			}
		}
		else if (op->done_line == 0 && client->killed == NEVER)
		{
			if (check_violation(OUTCOME, "Call %u of client %lld has no completion, though nobody killed that client.",
								op->number, CLIENT(op)))
			{
				check_show_op(i);
				check_show_line(client->last_line);
				check_violation_end();
			}
		}
	}
}

void
check_leaks(void)
{
	for (uint32_t i = 0; i < history.ncounts; i++)
	{
		const FinalCount *count = &history.counts[i];

		if (count->value != count->expect &&
			check_violation(LEAKS, "At the end there are %lld %.*s, where %lld are expected.",
							(long long) count->value, TEXT_ARGS(count->what),
							(long long) count->expect))
		{
			check_show_line(count->line);
			check_violation_end();
		}
	}
}
