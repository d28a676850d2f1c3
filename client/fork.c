/*-------------------------------------------------------------------------
 *
 * fork.c
 *	  Handles in a process that did not open them.
 *
 * After fork() the child has a copy of the handle and shares its sockets, but
 * has none of its threads.  If the child sent a statement, the parent might
 * read the answer, and the locks belong to the parent.  So all that the child
 * may do with a handle is to close it, which frees the copy and disturbs neither
 * the parent nor the server.  A mutex may be held by a thread that the child
 * does not have, so none is locked here.
 *
 * Every call asks whether it is in a child.  The process id tells, and getpid() is a
 * call of the kernel.  Linux spares it: a page that the kernel empties in a child has
 * a mark, and as long as the mark is there, this is no child.
 *
 *-------------------------------------------------------------------------
 */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "clock.h"
#include "conn_int.h"
#include "fork.h"
#include "orphan.h"
#include "prepared.h"
#include "roster.h"

static const char *mark;		/* NULL: there is none */

#ifdef MADV_WIPEONFORK
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void
make_mark(void)
{
	size_t		size = (size_t) sysconf(_SC_PAGESIZE);
	char	   *page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (page == MAP_FAILED)
		return;
	/* an emulator may accept any advice, and follow none */
	if (madvise(page, size, -1) == 0 || madvise(page, size, MADV_WIPEONFORK) != 0)
	{
		munmap(page, size);
		return;
	}
	page[0] = 1;
	mark = page;
}
#endif

/*
 * A handle is being opened.  A child never gets a mark of its own, because the
 * handles of its parent would then seem to be its own.
 */
void
dlock_fork_watch(void)
{
#ifdef MADV_WIPEONFORK
	pthread_once(&once, make_mark);
#endif
}

bool
dlock_forked(const dlock_handle *handle)
{
	if (mark != NULL && *mark != 0)
		return false;
	return handle->pid != getpid();
}

/* Was it unused when the process forked? */
static bool
is_unused(const dlock_handle *handle, const DlockConn *conn)
{
	for (int i = 0; i < handle->nidle; i++)
		if (handle->idle[i] == conn)
			return true;
	return handle->returned == conn;
}

/* Those that cannot be freed; leak checkers see that they are not forgotten. */
static DlockConn *left_behind;

/*
 * Drop a connection without telling the server: its descriptor is replaced by
 * /dev/null before libpq sends its farewell.  A connection that another thread
 * was using may be in any state, so only its descriptor is closed.
 */
static void
disown(DlockConn *conn, bool unused)
{
	int			fd = conn->pg != NULL ? PQsocket(conn->pg) : -1;

	if (conn->resolve != NULL)
		close(dlock_resolve_fd(conn->resolve));
	if (!unused)
	{
		if (fd >= 0)
			close(fd);
		conn->next = left_behind;
		left_behind = conn;
		return;
	}
	if (fd >= 0)
	{
		int			nothing = open("/dev/null", O_RDWR | O_CLOEXEC);

		if (nothing < 0 || dup2(nothing, fd) < 0)
		{
			close(fd);
			conn->pg = NULL;
		}
		if (nothing >= 0)
			close(nothing);
	}
	PQclear(conn->result);
	if (conn->pg != NULL)
		PQfinish(conn->pg);
	dlock_prepared_forget(conn);
	free(conn->schema);
	free(conn);
}

/* dlock_close() in a child. */
void
dlock_forked_close(dlock_handle *handle)
{
	DlockConn  *next;

	for (DlockConn *conn = handle->target->conns; conn != NULL; conn = next)
	{
		bool		unused = is_unused(handle, conn);

		next = conn->next;
		for (dlock_lock *lock = handle->locks; lock != NULL; lock = lock->next)
			if (lock->conn == conn)
			{
				unused = true;
				lock->conn = NULL;
			}
		disown(conn, unused);
	}
	while (handle->locks != NULL)
	{
		dlock_lock *lock = handle->locks;

		handle->locks = lock->next;
		dlock_lock_destroy(lock);
	}
	dlock_orphans_drop(handle, DLOCK_NEVER);
	free(handle->batch);
	dlock_bell_free(&handle->bell);
	dlock_bell_free(&handle->async.bell);
	dlock_bell_free(&handle->async.woken.bell);
	dlock_target_free(handle->target);
	free(handle);
}
