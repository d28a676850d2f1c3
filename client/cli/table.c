/*
 * table.c
 *	  Aligned columns.
 *
 * On a terminal no line is wider than the terminal: the least important columns
 * are left out if there is no room for all, and long cells are cut.
 *
 * Elsewhere nothing is left out or cut, and each row has all its cells; an empty
 * one is "-".  Two spaces or more separate cells, and never occur within one
 * (printable.c).  A very long cell makes only its own row longer.
 */
#include "text.h"

#include <stdlib.h>

/* Where nothing is cut, cells wider than this do not widen their column. */
#define USUAL_WIDTH 40

/*
 * The least widths are for a terminal of this many columns.  On a wider one they
 * grow with it, so that a column is left out before others are cut too far.
 */
#define LEAST_FOR 60

typedef struct
{
	char	   *string;			/* not escaped yet */
	Colour		colour;
	int			width;
} Cell;

struct Table
{
	const Column *columns;
	int			count;
	bool		continues;		/* an earlier one: no heading */
	Cell	   *cells;
	int			used;
	int			size;
};

/* The width of a column, and whether it is shown. */
typedef struct
{
	int			full;			/* of the widest cell */
	int			width;
	bool		shown;
} Place;

Table *
table_new(const Column *columns, int count)
{
	Table	   *table = allocate(sizeof(*table));

	table->columns = columns;
	table->count = count;
	return table;
}

/* Its rows follow those of another table, which had the heading. */
void
table_continue(Table *table)
{
	table->continues = true;
}

/* The next cell, from left to right; NULL is empty. */
void
table_cell(Table *table, Colour colour, const char *string)
{
	Cell	   *cell;

	if (table->used == table->size)
	{
		table->size = table->size * 2 + 64;
		table->cells = reallocate(table->cells,
								  (size_t) table->size * sizeof(Cell));
	}
	cell = &table->cells[table->used++];
	cell->string = copy_string(string != NULL ? string : "");
	cell->colour = colour;
	cell->width = printable_width(cell->string);
}

void
table_number(Table *table, Colour colour, int64_t number)
{
	char		buffer[32];

	snprintf(buffer, sizeof(buffer), "%lld", (long long) number);
	table_cell(table, colour, buffer);
}

/* A negative one is empty. */
void
table_duration(Table *table, Colour colour, int64_t ms)
{
	Text		buffer = {0};

	if (ms >= 0)
		text_duration(&buffer, ms);
	table_cell(table, colour, buffer.data);
	text_free(&buffer);
}

static int
count_rows(const Table *table)
{
	return table->used / table->count;
}

/* The least width at which a column is useful. */
static int
needed(const Column *column, const Place *place, int width)
{
	int			least = column->least;

	if (width > LEAST_FOR)
		least = least * width / LEAST_FOR;
	return least > 0 && least < place->full ? least : place->full;
}

/* Leave out columns until there is room for the others. */
static void
choose(const Table *table, Place *places, int width)
{
	for (;;)
	{
		int			sum = -2;
		int			last = 0;
		int			i;

		for (i = 0; i < table->count; i++)
		{
			if (!places[i].shown)
				continue;
			places[i].width = needed(&table->columns[i], &places[i], width);
			sum += places[i].width + 2;
			if (table->columns[i].rank > table->columns[last].rank ||
				!places[last].shown)
				last = i;
		}
		if (sum <= width)
			return;
		if (table->columns[last].rank == 0)
		{
			/* there is not even room for this one */
			places[last].width = width;
			return;
		}
		places[last].shown = false;
	}
}

/* Share the remaining room among cut columns, by their least widths. */
static void
spread(const Table *table, Place *places, int width)
{
	const Column *columns = table->columns;
	int			room = width + 2;
	int			i;

	for (i = 0; i < table->count; i++)
		if (places[i].shown)
			room -= places[i].width + 2;
	while (room-- > 0)
	{
		int			next = -1;

		for (i = 0; i < table->count; i++)
			if (places[i].shown && places[i].width < places[i].full &&
				(next < 0 || places[i].width * columns[next].least <
				 places[next].width * columns[i].least))
				next = i;
		if (next < 0)
			return;
		places[next].width++;
	}
}

static Place *
lay_out(const Table *table, int width, int *seen)
{
	Place	   *places = allocate((size_t) table->count * sizeof(Place));
	int			row;
	int			i;

	for (i = 0; i < table->count; i++)
	{
		int			full = printable_width(table->columns[i].title);

		for (row = 0; row < count_rows(table); row++)
		{
			int			here = table->cells[row * table->count + i].width;

			if (here > full && (width > 0 || here <= USUAL_WIDTH))
				full = here;
		}
		if (seen != NULL && seen[i] > full)
			full = seen[i];
		if (seen != NULL)
			seen[i] = full;
		places[i].full = places[i].width = full;
		places[i].shown = true;
	}
	if (width > 0)
	{
		choose(table, places, width);
		spread(table, places, width);
	}
	return places;
}

static void
add_cell(Text *out, bool right, const char *string, Colour colour, int width,
		 bool cut)
{
	Text		cell = {0};
	int			used = 0;
	int			padding;

	if (cut)
		used = printable_cut(&cell, string, width);
	else
	{
		text_printable(&cell, string);
		used = printable_width(string);
	}
	padding = width > used ? width - used : 0;
	if (right)
		text_format(out, "%*s", padding, "");
	if (colour != PLAIN && cell.len > 0)
		text_add(out, colour_code(colour));
	text_add(out, cell.data);
	if (colour != PLAIN && cell.len > 0)
		text_add(out, colour_code(PLAIN));
	text_format(out, "%*s", right ? 2 : padding + 2, "");
	text_free(&cell);
}

static void
end_line(Text *out)
{
	while (out->len > 0 && out->data[out->len - 1] == ' ')
		out->data[--out->len] = '\0';
	text_add(out, "\n");
}

/*
 * The heading and the rows.  width 0: not for a terminal.  seen, if not NULL,
 * holds the widths of the previous tables, so that the columns of a table that is
 * shown repeatedly stay where they are.
 */
void
table_text(const Table *table, Text *out, int width, int *seen, bool coloured)
{
	Place	   *places = lay_out(table, width, seen);
	int			row;
	int			i;

	for (i = 0; i < table->count && !table->continues; i++)
		if (places[i].shown)
			add_cell(out, table->columns[i].right, table->columns[i].title,
					 coloured ? BOLD : PLAIN, places[i].width, width > 0);
	if (!table->continues)
		end_line(out);
	for (row = 0; row < count_rows(table); row++)
	{
		for (i = 0; i < table->count; i++)
		{
			const Cell *cell = &table->cells[row * table->count + i];
			bool		empty = width == 0 && cell->string[0] == '\0';

			if (places[i].shown)
				add_cell(out, table->columns[i].right,
						 empty ? "-" : cell->string,
						 coloured ? cell->colour : PLAIN, places[i].width,
						 width > 0);
		}
		end_line(out);
	}
	free(places);
}

void
table_free(Table *table)
{
	int			i;

	for (i = 0; i < table->used; i++)
		free(table->cells[i].string);
	free(table->cells);
	free(table);
}
