/*
 * table.c
 *	  Aligned columns that fit the terminal: those that may be are cut.
 */
#include "text.h"

#include <stdlib.h>

typedef struct
{
	char	   *string;			/* as it came */
	Colour		colour;
	int			width;
} Cell;

struct Table
{
	const Column *columns;
	int			count;
	Cell	   *cells;
	int			used;
	int			size;
};

Table *
table_new(const Column *columns, int count)
{
	Table	   *table = allocate(sizeof(*table));

	table->columns = columns;
	table->count = count;
	return table;
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
	cell->width = text_width(cell->string);
}

int
table_rows(const Table *table)
{
	return table->used / table->count;
}

/* Cut the widest of those that may be cut until the line fits. */
static void
fit(const Table *table, int *widths, int width)
{
	for (;;)
	{
		int			sum = 2 * (table->count - 1);
		int			widest = -1;
		int			i;

		for (i = 0; i < table->count; i++)
		{
			int			least = table->columns[i].shrink;

			sum += widths[i];
			if (least > 0 && widths[i] > least &&
				(widest < 0 || widths[i] > widths[widest]))
				widest = i;
		}
		if (sum <= width || widest < 0)
			return;
		widths[widest]--;
	}
}

static void
add_cell(Text *out, const Column *column, const char *string, Colour colour,
		 int width, bool last, bool coloured)
{
	Text		cell = {0};
	int			padding;

	text_printable(&cell, string, width);
	if (cell.data == NULL)
		text_clear(&cell);
	padding = width - text_width(cell.data);
	if (padding < 0)
		padding = 0;
	if (column->right)
		text_format(out, "%*s", padding, "");
	if (coloured && colour != PLAIN && cell.length > 0)
		text_add(out, colour_code(colour));
	text_add(out, cell.data);
	if (coloured && colour != PLAIN && cell.length > 0)
		text_add(out, colour_code(PLAIN));
	if (!last)
		text_format(out, "%*s", column->right ? 2 : padding + 2, "");
	text_free(&cell);
}

/* width 0: as wide as it gets.  limit 0: all rows. */
void
table_text(const Table *table, Text *out, int width, int limit, bool coloured)
{
	int		   *widths = allocate((size_t) table->count * sizeof(int));
	int			rows = table_rows(table);
	int			row;
	int			i;

	if (limit > 0 && rows > limit)
		rows = limit;
	for (i = 0; i < table->count; i++)
	{
		widths[i] = text_width(table->columns[i].title);
		for (row = 0; row < rows; row++)
		{
			int			here = table->cells[row * table->count + i].width;

			if (here > widths[i])
				widths[i] = here;
		}
	}
	if (width > 0)
		fit(table, widths, width);

	for (i = 0; i < table->count; i++)
		add_cell(out, &table->columns[i], table->columns[i].title, BOLD,
				 widths[i], i == table->count - 1, coloured);
	text_add(out, "\n");
	for (row = 0; row < rows; row++)
	{
		for (i = 0; i < table->count; i++)
		{
			const Cell *cell = &table->cells[row * table->count + i];

			add_cell(out, &table->columns[i], cell->string, cell->colour,
					 widths[i], i == table->count - 1, coloured);
		}
		/* where the last cells are empty */
		while (out->length > 0 && out->data[out->length - 1] == ' ')
			out->data[--out->length] = '\0';
		text_add(out, "\n");
	}
	free(widths);
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
