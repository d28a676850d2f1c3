/*-------------------------------------------------------------------------
 *
 * using.c
 *	  Which process is using a row: the one whose open transaction has written
 *	  it, is replacing it, or has locked it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/multixact.h"
#include "access/subtrans.h"
#include "access/transam.h"
#include "access/xact.h"
#include "storage/procarray.h"
#include "utils/snapmgr.h"

#include "using.h"

/* The process that runs this transaction, or 0. */
int
dlock_using_xid(TransactionId xid)
{
	if (!TransactionIdIsValid(xid) || TransactionIdPrecedes(xid, TransactionXmin))
		return 0;
	return BackendXidGetPid(SubTransGetTopmostTransaction(xid));
}

/*
 * The process that has locked this row or is replacing it, or 0.  If there are
 * several, as with several fences, it is one of them.
 */
int
dlock_using_row(HeapTuple tuple)
{
	uint16		infomask = tuple->t_data->t_infomask;
	TransactionId xmax = HeapTupleHeaderGetRawXmax(tuple->t_data);
	MultiXactMember *members;
	int			nmembers;
	int			pid = 0;

	if ((infomask & HEAP_XMAX_INVALID) || HEAP_LOCKED_UPGRADED(infomask))
		return 0;
	if (!(infomask & HEAP_XMAX_IS_MULTI))
		return dlock_using_xid(xmax);

	nmembers = GetMultiXactIdMembers(xmax, &members, false,
									 HEAP_XMAX_IS_LOCKED_ONLY(infomask));
	for (int i = 0; i < nmembers && pid == 0; i++)
		pid = dlock_using_xid(members[i].xid);
	if (nmembers > 0)
		pfree(members);
	return pid;
}
