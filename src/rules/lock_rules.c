/*-------------------------------------------------------------------------
 *
 * lock_rules.c
 *	  The rules of the lock as a pure function.
 *
 * Time makes one of five things of a row (DlockPhase).  Free and expired differ
 * only for the reaper: to everyone else an expired grant is gone at the very
 * instant its time is up.  A key without a row is free.  A row that is cooling
 * has no holder, but keeps others out.  A lapsed grant is its holder's until
 * another request takes it.
 *
 * A row that is unsettled shows the last committed state of a row that another
 * open transaction is changing.  An acquire must not wait for that transaction,
 * so it takes the row for an obstacle.  The reaper skips it, and comes again.
 * The holder's own operations decide on the committed row.  If it says that the
 * caller is not the holder, no outcome of the other transaction makes it the
 * holder.  If it says that the caller is, the writer waits for the row and asks
 * again.  A row that is used, which means locked, is an obstacle even if it has
 * expired: a fence holds it, or it is just being taken.
 *
 * Obstacles.  An exclusive request needs the whole key, so every other grant of
 * the key is in its way.  A shared request has the exclusive grant in its way,
 * and if it asks for one of N places, as many other grants as there are above
 * N - 1.  Grants that have lapsed give way.  So do grants of a lower priority,
 * once they have been asked and had their time.
 *
 * Expired grants give way, too, but they have to be ended, not just passed by:
 * a restart gives every row that is held one TTL from then.  What has expired
 * and was followed by another grant must not come back beside it.
 *
 * Preemption.  A request with a strictly higher priority than the holder's asks
 * the holder to yield.  The holder has its cleanup time for that, or the rest
 * of the time that the requester waits, whichever is shorter.  When that time
 * is up, a request with force takes the lock, and any other is refused.  A
 * holder that needs no cleanup loses the lock at once.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "rules/lock_rules.h"

/*
 * Time
 */

/* How long a row keeps others out after its grant has ended by itself. */
int64
dlock_rules_busy_until(const DlockState *row)
{
	int64		until;

	if (!row->held)
		return row->expires;
	until = row->acquired + row->terms.at_least;

	/* if its session has gone, we do not know when: no later than this */
	if (!row->gone || row->terms.delay > 0)
		until = Max(until, row->expires + row->terms.delay);
	return until;
}

/* What time has made of a row. */
static DlockPhase
phase_of(const DlockState *row, int64 now)
{
	if (!row->exists)
		return DLOCK_PHASE_FREE;
	if (row->held && !row->gone)
	{
		if (now < row->expires)
			return DLOCK_PHASE_LIVE;
		if (row->terms.lazy)
			return DLOCK_PHASE_LAPSED;
	}
	if (now < dlock_rules_busy_until(row))
		return DLOCK_PHASE_COOLING;
	return row->held ? DLOCK_PHASE_EXPIRED : DLOCK_PHASE_FREE;
}

/* The same for other files. */
DlockPhase
dlock_rules_phase(const DlockState *row, int64 now)
{
	return phase_of(row, now);
}

/* Is it a grant that its holder can use? */
bool
dlock_rules_is_held(const DlockState *row, int64 now)
{
	DlockPhase	phase = phase_of(row, now);

	return phase == DLOCK_PHASE_LIVE || phase == DLOCK_PHASE_LAPSED;
}

/* Since when the holder has been asked; now, if it has not been. */
int64
dlock_rules_asked_since(const DlockState *row, const DlockAsking *asking, int64 now)
{
	if (asking->all)
		return Max(asking->since, Min(row->acquired, now));
	for (int i = 0; i < asking->n; i++)
		if (asking->one[i].version == row->version)
			return asking->one[i].since;
	return now;
}

/* When the holder's time to yield is up, if it is asked at the latest now. */
int64
dlock_rules_yield_by(const DlockState *row, const DlockAsking *asking, int64 until,
					 int64 now)
{
	return Min(dlock_rules_asked_since(row, asking, now) + row->terms.cleanup, until);
}

/*
 * Has the grant been held for as long as the policies allow?  Then it is not renewed.
 * Its expiry is no later, unless it is older than the policy, or lapsed.
 */
static bool
is_held_out(const DlockState *row, const DlockRequest *request, int64 now)
{
	return request->max_hold != 0 && request->stamp == 0 &&
		now >= row->acquired + request->max_hold;
}

/*
 * Verdicts
 */

/* A verdict about row "row", or about none (DLOCK_NO_ROW). */
static DlockVerdict
verdict(DlockAction action, DlockAnswer answer, int row)
{
	DlockVerdict v = {0};

	v.action = action;
	v.answer = answer;
	v.row = row;
	return v;
}

/* There is nothing to write: this is the answer. */
static DlockVerdict
nothing(DlockAnswer answer, int row)
{
	return verdict(DLOCK_DO_NOTHING, answer, row);
}

/*
 * The end of a grant.  The row of a head stays, so that the next grant updates
 * it in place; that of a place goes, unless it has to cool.
 */
static DlockVerdict
end_grant(const DlockState *row, int i, bool is_lost, int64 now)
{
	int64		until = row->acquired + row->terms.at_least;
	DlockVerdict v;

	if (is_lost && row->terms.delay > 0)
		until = Max(until, now + row->terms.delay);
	v = verdict(row->slot == DLOCK_HEAD || until > now ?
				DLOCK_DO_CLEAR : DLOCK_DO_REMOVE, DLOCK_IS_RELEASED, i);
	if (until > now)
		v.cools_until = until;
	return v;
}

/*
 * Acquire
 */

/* Is this a grant of the same role and owner? */
static bool
is_own(const DlockState *row, const DlockRequest *request)
{
	return row->held && dlock_terms_same_owner(&row->terms, &request->terms);
}

/* ... which the request gets again, rather than another one? */
static bool
is_to_get(const DlockState *row, const DlockRequest *request)
{
	return is_own(row, request) && !request->terms.anew;
}

/* Is this the place that the request would take? */
static bool
is_its_place(const DlockState *row, const DlockRequest *request)
{
	return request->slot != DLOCK_HEAD && row->slot == request->slot;
}

/* How a row stands in the way of any acquire but its own owner's. */
static DlockObstacle
obstacle_of(const DlockState *row, int64 now)
{
	if (row->unsettled)
		return DLOCK_BLOCKS;
	switch (phase_of(row, now))
	{
		case DLOCK_PHASE_LIVE:
			return DLOCK_HOLDS;
		case DLOCK_PHASE_COOLING:
			return DLOCK_BLOCKS;
		case DLOCK_PHASE_LAPSED:
			return row->used || now < row->acquired + row->terms.at_least ?
				DLOCK_BLOCKS : DLOCK_GIVES_WAY;
		case DLOCK_PHASE_EXPIRED:
			return row->used ? DLOCK_BLOCKS : DLOCK_IS_OVER;
		case DLOCK_PHASE_FREE:
			break;
	}
	return row->used ? DLOCK_BLOCKS : DLOCK_NO_OBSTACLE;
}

/*
 * Does this row keep the request from being granted?  For one of several places
 * it may be one of those that do.  A grant of its own does, unless nothing keeps the
 * request from getting it again.
 */
bool
dlock_rules_blocks(const DlockState *row, const DlockRequest *request, int64 now)
{
	if (row->slot != DLOCK_HEAD && request->terms.capacity == DLOCK_SHARED &&
		!is_its_place(row, request))
		return false;
	if (is_to_get(row, request) && !row->unsettled &&
		dlock_rules_is_held(row, now) && !is_held_out(row, request, now))
		return false;
	return obstacle_of(row, now) >= DLOCK_HOLDS;
}

/*
 * How many of the rows that block the request have to end: of the places of others
 * as many as leave room, and all else.
 */
int
dlock_rules_must_end(const DlockState *rows, int nrows,
					 const DlockRequest *request, int64 now)
{
	int			all = 0;
	int			places = 0;

	for (int i = 0; i < nrows; i++)
		if (dlock_rules_blocks(&rows[i], request, now))
		{
			if (rows[i].slot == DLOCK_HEAD || is_own(&rows[i], request))
				all++;
			else
				places++;
		}
	if (request->terms.capacity > DLOCK_EXCLUSIVE)
		places = Max(places - request->terms.capacity + 1, 0);
	return all + places;
}

/* What has to end before the request can be granted. */
typedef struct Contest
{
	DlockState *rows;
	int			nrows;
	const DlockRequest *request;
	const DlockTurn *turn;
	int64		now;
	int			taken;			/* the row that the grant overwrites */

	int			nasked;			/* how many are asked to yield */
	bool		is_asked;		/* somebody still has time to yield */
	bool		is_refused;		/* somebody did not */
	int			about;			/* the row that the answer is about */
	int			nends;
} Contest;

/*
 * The i'th row has to end.  Note how: at once, or after its holder was asked to
 * yield.  False: it will not end, so the request is busy.
 */
static bool
oust(Contest *contest, int i)
{
	DlockState *row = &contest->rows[i];

	if (row->obstacle == DLOCK_BLOCKS ||
		(row->obstacle == DLOCK_HOLDS &&
		 contest->request->terms.priority <= row->terms.priority))
	{
		contest->about = i;
		return false;
	}

	row->ends = true;
	contest->nends++;
	if (row->obstacle <= DLOCK_GIVES_WAY || row->terms.cleanup == 0)
		return true;

	row->yields = true;
	contest->nasked++;
	if (contest->about == DLOCK_NO_ROW)
		contest->about = i;
	if (contest->now < dlock_rules_yield_by(row, &contest->turn->asking,
											contest->turn->until, contest->now))
		contest->is_asked = true;
	else if (!contest->request->terms.force)
	{
		contest->is_refused = true;
		contest->about = i;
	}
	return true;
}

/* Is this a place of another request that is in the way? */
static bool
is_in_the_way(const Contest *contest, int i)
{
	const DlockState *row = &contest->rows[i];

	return row->slot != DLOCK_HEAD && !row->ends && i != contest->taken &&
		row->obstacle != DLOCK_NO_OBSTACLE;
}

/* Should a be preempted before b? */
static bool
goes_before(const DlockState *a, const DlockState *b)
{
	if (a->obstacle != b->obstacle)
		return a->obstacle < b->obstacle;
	if (a->obstacle <= DLOCK_GIVES_WAY)
		return a < b;
	if (a->terms.priority != b->terms.priority)
		return a->terms.priority < b->terms.priority;
	return a->version > b->version;
}

/* rows[0 .. n - 1].order is a heap of rows; the one at this place may be low. */
static void
sift_down(DlockState *rows, int n, int at)
{
	for (;;)
	{
		int			next = 2 * at + 1;
		int			moved = rows[at].order;

		if (next + 1 < n &&
			goes_before(&rows[rows[next + 1].order], &rows[rows[next].order]))
			next++;
		if (next >= n || !goes_before(&rows[rows[next].order], &rows[moved]))
			return;
		rows[at].order = rows[next].order;
		rows[next].order = moved;
		at = next;
	}
}

/*
 * Make room among the places for one of request->terms.capacity: oust that many.  First
 * those that nobody has any more, then those that have lapsed, each in any
 * order, then holders.  There may be thousands, so a heap says which is next.
 */
static bool
oust_places(Contest *contest, int excess)
{
	DlockState *rows = contest->rows;
	int			n = 0;

	for (int i = 0; i < contest->nrows; i++)
		if (is_in_the_way(contest, i))
			rows[n++].order = i;
	for (int i = n / 2 - 1; i >= 0; i--)
		sift_down(rows, n, i);
	while (excess-- > 0)
	{
		if (n == 0 || !oust(contest, rows[0].order) ||
			contest->nasked > DLOCK_MAX_ASKED)
			return false;
		rows[0].order = rows[--n].order;
		sift_down(rows, n, 0);
	}
	return true;
}

/*
 * Oust all that are in the way.  That is neither the place that the request has
 * so far nor a row of another kind that it overwrites.
 */
static bool
clear_the_way(Contest *contest, int own)
{
	int			limit = contest->request->terms.capacity;
	int			others = 0;

	for (int i = 0; i < contest->nrows; i++)
	{
		DlockState *row = &contest->rows[i];

		if (row->obstacle == DLOCK_NO_OBSTACLE || i == own ||
			(i == contest->taken && row->slot != DLOCK_HEAD))
			continue;
		if (row->slot != DLOCK_HEAD && limit != DLOCK_EXCLUSIVE)
			others++;
		else if (!oust(contest, i))
			return false;
	}
	if (limit == DLOCK_SHARED || limit == DLOCK_EXCLUSIVE || others < limit)
		return true;
	return oust_places(contest, others - limit + 1);
}

/* Is one of those that end in use?  Then it cannot be locked, so it is busy. */
static bool
is_any_used(Contest *contest)
{
	for (int i = 0; i < contest->nrows; i++)
		if (contest->rows[i].ends && contest->rows[i].used)
		{
			contest->about = i;
			return true;
		}
	return false;
}

/* The row that a new grant takes over, or none: it gets a new one. */
static int
row_to_take(const DlockState *rows, int nrows, const DlockRequest *request)
{
	for (int i = 0; i < nrows; i++)
		if (rows[i].exists &&
			(request->terms.capacity == DLOCK_EXCLUSIVE ? rows[i].slot == DLOCK_HEAD :
			 is_its_place(&rows[i], request)))
			return i;
	return DLOCK_NO_ROW;
}

/* A retry of the same request, or the same owner with another kind of lock. */
static DlockVerdict
acquire_again(const DlockState *rows, int own, const DlockRequest *request)
{
	bool		is_head = rows[own].slot == DLOCK_HEAD;

	if (is_head && request->terms.capacity != DLOCK_EXCLUSIVE)
		return verdict(DLOCK_DO_MOVE, DLOCK_IS_GRANTED, own);
	return verdict(DLOCK_DO_RENEW, DLOCK_IS_GRANTED, own);
}

/*
 * An acquire.  An owner that has the key gets it again, unless it has held it for too
 * long: then it waits until that has ended, as it does with "anew".  A request never
 * preempts its own owner.  If another request comes first, the answer is "busy",
 * except for an upgrade: everybody else waits for the place that its owner has.
 */
static DlockVerdict
acquire(DlockState *rows, int nrows, const DlockRequest *request,
		const DlockTurn *turn, int64 now)
{
	Contest		contest = {rows, nrows, request, turn, now,
		.taken = row_to_take(rows, nrows, request),.about = DLOCK_NO_ROW
	};
	int			own = DLOCK_NO_ROW;
	bool		upgrades = false;
	DlockVerdict v;

	for (int i = 0; i < nrows; i++)
	{
		bool		is_ours = is_own(&rows[i], request);

		rows[i].obstacle = obstacle_of(&rows[i], now);
		rows[i].yields = rows[i].ends = false;
		if (is_to_get(&rows[i], request) && !rows[i].unsettled &&
			dlock_rules_is_held(&rows[i], now) && !is_held_out(&rows[i], request, now))
			own = i;

		/*
		 * held for too long, anew, an answer that is still open, or an owner
		 * with the same hash
		 */
		else if ((is_ours || is_its_place(&rows[i], request)) &&
				 rows[i].obstacle >= DLOCK_HOLDS)
			return nothing(DLOCK_IS_BUSY, i);
	}

	if (own != DLOCK_NO_ROW)
	{
		upgrades = rows[own].slot != DLOCK_HEAD && request->terms.capacity == DLOCK_EXCLUSIVE;
		if (!upgrades)
			return acquire_again(rows, own, request);
		rows[own].ends = true;
		contest.nends++;
	}

	if ((turn->behind && !upgrades) || !clear_the_way(&contest, own))
		v = nothing(DLOCK_IS_BUSY, contest.about);
	else if (contest.is_refused)
		v = nothing(DLOCK_IS_REFUSED, contest.about);
	else if (contest.is_asked)
		v = nothing(DLOCK_IS_ASKED, contest.about);
	else if (is_any_used(&contest))
		v = nothing(DLOCK_IS_BUSY, contest.about);
	else
	{
		v = verdict(DLOCK_DO_GRANT, DLOCK_IS_GRANTED, contest.taken);
		v.nends = contest.nends;
	}
	v.upgrades = upgrades;
	return v;
}

/*
 * The others
 */

/* The reaper's request for one row: remove it if nobody needs it. */
static DlockVerdict
reap(const DlockState *rows, int nrows, const DlockRequest *request, int64 now)
{
	for (int i = 0; i < nrows; i++)
	{
		const DlockState *row = &rows[i];
		DlockVerdict v;

		if (!row->exists || row->unsettled)
			continue;
		switch (phase_of(row, now))
		{
			case DLOCK_PHASE_LIVE:
				break;
			case DLOCK_PHASE_LAPSED:
				if (now - row->expires >= request->lapse)
					return verdict(DLOCK_DO_REMOVE, DLOCK_IS_EXPIRED, i);
				break;
			case DLOCK_PHASE_COOLING:
				if (!row->held)
					break;
				v = verdict(DLOCK_DO_CLEAR, DLOCK_IS_EXPIRED, i);
				v.cools_until = dlock_rules_busy_until(row);
				return v;
			case DLOCK_PHASE_EXPIRED:
				return verdict(DLOCK_DO_REMOVE, DLOCK_IS_EXPIRED, i);
			case DLOCK_PHASE_FREE:
				if (row->slot != DLOCK_HEAD ||
					now - row->idle_since >= request->linger)
					return verdict(DLOCK_DO_REMOVE, DLOCK_IS_IDLE, i);
				break;
		}
	}
	return nothing(DLOCK_IS_BUSY, DLOCK_NO_ROW);
}

/* The grant of the given version, or what it left behind to cool. */
static DlockVerdict
force(const DlockState *rows, int nrows, const DlockRequest *request, int64 now)
{
	for (int i = 0; i < nrows; i++)
	{
		DlockPhase	phase = phase_of(&rows[i], now);

		if (rows[i].version != request->version)
			continue;
		if (phase == DLOCK_PHASE_LIVE || phase == DLOCK_PHASE_LAPSED)
			return end_grant(&rows[i], i, true, now);
		if (phase == DLOCK_PHASE_COOLING)
			return verdict(DLOCK_DO_CLEAR, DLOCK_IS_RELEASED, i);
	}
	return nothing(DLOCK_IS_NOT_HELD, DLOCK_NO_ROW);
}

/*
 * Does the request name this grant?  The role always counts.  The version, the
 * owner and the session count if they are given; the owner of a handover is the
 * next one, and does not name the grant.
 */
static bool
names_grant(const DlockRequest *request, const DlockState *row)
{
	bool		by_owner = request->terms.owner != NULL && request->op != DLOCK_HANDOVER;

	if (request->terms.role != row->terms.role)
		return false;
	if (request->by_version && request->version != row->version)
		return false;
	if (by_owner && !dlock_terms_same_owner(&row->terms, &request->terms))
		return false;
	if (request->pid != 0 && request->pid != row->pid)
		return false;
	if (request->exclusive_only && row->slot != DLOCK_HEAD)
		return false;
	return request->by_version || by_owner || request->pid != 0;
}

/*
 * The holder of a grant gives it to another owner.  An owner has one place, so a
 * place goes only to an owner that has none, and that is not about to get one.
 */
static DlockVerdict
hand_over(const DlockState *rows, int nrows, int i, const DlockRequest *request,
		  int64 now)
{
	for (int j = 0; j < nrows && rows[i].slot != DLOCK_HEAD; j++)
		if (j != i && is_its_place(&rows[j], request) &&
			obstacle_of(&rows[j], now) > DLOCK_IS_OVER)
			return nothing(DLOCK_IS_BUSY, j);
	return verdict(DLOCK_DO_HAND_OVER, DLOCK_IS_GRANTED, i);
}

/* The holder's own operations on row i. */
static DlockVerdict
by_holder(const DlockState *rows, int nrows, int i, const DlockRequest *request,
		  int64 now)
{
	const DlockState *row = &rows[i];

	switch (request->op)
	{
		case DLOCK_REFRESH:
		case DLOCK_HANDOVER:
			if (is_held_out(row, request, now))
				return nothing(DLOCK_IS_NOT_HELD, DLOCK_NO_ROW);
			return request->op == DLOCK_HANDOVER ?
				hand_over(rows, nrows, i, request, now) :
				verdict(DLOCK_DO_RENEW, DLOCK_IS_HELD, i);
		case DLOCK_RELEASE:
			return end_grant(row, i, request->is_lost, now);
		case DLOCK_FENCE:
			return verdict(DLOCK_DO_PIN, DLOCK_IS_HELD, i);
		default:
			return nothing(row->asked ? DLOCK_IS_PREEMPTING : DLOCK_IS_HELD, i);
	}
}

/*
 * What to do about a request, given the rows of its key at "now".  Called by lock.c
 * and grant.c, before a row is locked and again after that.
 */
DlockVerdict
dlock_rules_decide(DlockState *rows, int nrows, const DlockRequest *request,
				   const DlockTurn *turn, int64 now)
{
	int			held = DLOCK_NO_ROW;

	switch (request->op)
	{
		case DLOCK_ACQUIRE:
			return acquire(rows, nrows, request, turn, now);
		case DLOCK_REAP:
			return reap(rows, nrows, request, now);
		case DLOCK_FORCE:
			return force(rows, nrows, request, now);
		default:
			break;
	}

	for (int i = 0; i < nrows; i++)
	{
		/* what our own transaction has written cannot be lost before it ends */
		if (!dlock_rules_is_held(&rows[i], now) &&
			!(request->stamp != 0 && rows[i].held))
			continue;
		if (names_grant(request, &rows[i]))
			return by_holder(rows, nrows, i, request, now);

		/* if the version is right, it is the role or the owner that is not */
		if (held == DLOCK_NO_ROW || !request->by_version ||
			rows[held].version != request->version)
			held = i;
	}
	return nothing(held == DLOCK_NO_ROW ?
				   DLOCK_IS_NOT_HELD : DLOCK_IS_HELD_BY_OTHER, held);
}
