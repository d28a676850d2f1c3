/*-------------------------------------------------------------------------
 *
 * params.h
 *	  Arrays as parameters of a statement, in the server's binary format.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_PARAMS_H
#define DLOCK_PARAMS_H

#include "base/constants.h"
#include "base/sql.h"
#include "base/util.h"
#include "net/conn.h"

/*
 * Parameters while they are collected: texts, and arrays, whose bytes are one
 * behind the other and may move while they grow.
 */
typedef struct DlockParamList
{
	PQExpBufferData bytes;
	int			n;
	size_t		starts[DLOCK_MAX_PARAMS];	/* of an array, in bytes */
	int			lengths[DLOCK_MAX_PARAMS];
	int			formats[DLOCK_MAX_PARAMS];	/* 1: it is an array */
	const char *values[DLOCK_MAX_PARAMS];
} DlockParamList;

extern void dlock_params_init(DlockParamList *list);
extern void dlock_params_free(DlockParamList *list);
extern void dlock_params_add_text(DlockParamList *list, const char *text);
extern void dlock_params_add_array(DlockParamList *list, DlockType type, int n);
extern void dlock_params_add_element(DlockParamList *list, DlockType type, const char *text);
extern void dlock_params_add_number(DlockParamList *list, int64_t number);
extern bool dlock_params_finish(DlockParamList *list);

#endif							/* DLOCK_PARAMS_H */
