package dlock

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"dlock.example/pg-dlock/internal/stmt"
)

// request is one statement, or several, asked until there is an answer.
type request struct {
	k          *keeper
	ctx        context.Context // the caller's, which Close ends, too
	server     *server
	began      time.Duration
	waitUntil  time.Duration
	alive      time.Duration // when the server last answered
	unanswered bool          // a statement may have taken effect unheard
}

// begin a request, with what the server has. The caller defers the function that it returns.
func (k *keeper) begin(ctx context.Context, wait time.Duration) (*request, func(), error) {
	t := now()
	r := &request{k: k, began: t, alive: t, waitUntil: after(t, wait)}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(k.ctx, func() { cancel(context.Cause(k.ctx)) })
	end := func() { stop(); cancel(nil) }
	r.ctx = ctx
	if k.ctx.Err() != nil {
		return r, end, context.Cause(k.ctx)
	}
	err := r.repeat(func() (err error) { r.server, err = k.know(ctx); return err })
	return r, end, err
}

// rest until then, or until the event; true if it was the event.
func (r *request) rest(until time.Duration, event <-chan struct{}) (bool, error) {
	for {
		timer := time.NewTimer(min(max(until-now(), 0), tick))
		select {
		case <-event:
			timer.Stop()
			return true, nil
		case <-r.ctx.Done():
			timer.Stop()
			return false, context.Cause(r.ctx)
		case <-timer.C:
		}
		if now() >= until {
			return false, nil
		}
	}
}

// repeat work after no answer: the same owner gets the same grant. The server may be silent for the timeout;
// one that turns us away is not silent, as long as the wait lasts.
func (r *request) repeat(work func() error) error {
	for pause := backoffFirst; ; pause = min(2*pause, backoffLast) {
		if r.ctx.Err() != nil {
			return context.Cause(r.ctx)
		}
		err := work()
		if r.ctx.Err() != nil && err != nil {
			r.unanswered = true
			return context.Cause(r.ctx)
		}
		t := now()
		if !errors.Is(err, ErrUnreachable) {
			r.alive = t
			return err
		}
		if isTurnedAway(translate(err)) && t < r.waitUntil {
			r.alive = t
		}
		if t+pause >= r.alive+r.k.timeout {
			return err
		}
		if _, err := r.rest(t+jitter(pause), nil); err != nil {
			return err
		}
	}
}

func (r *request) ask(sql string, args ...any) (rows []Row, sentAt time.Duration, err error) {
	err = r.repeat(func() error {
		rows, sentAt, err = r.k.ask(r.ctx, sql, args...)
		r.unanswered = r.unanswered || errors.Is(err, ErrUnreachable)
		return err
	})
	return rows, sentAt, err
}

// value is the first column of the first row.
func (r *request) value(sql string, args ...any) (*string, error) {
	rows, _, err := r.ask(sql, args...)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	return rows[0][0], nil
}

// acquire is a request for a lock.
//
//	try -> granted
//	 |
//	busy -> enqueue -> wait -> claim -> granted, or missed
//	                    ^--------'
//	... and from the beginning if the server does not know the ticket any more.
type acquire struct {
	*request
	keys    []string
	o       *options
	owner   string
	inDoubt bool // it may hold the lock unheard
	inQueue bool
	late    time.Duration   // since when grants are over before we hear of them; 0: they are not
	base    context.Context // of the lock's context
}

var errAgain, errMissed = errors.New("again"), errors.New("missed")

// acquire a lock whose context is derived from base.
func (k *keeper) acquire(ctx, base context.Context, keys []string, o *options) (*Lock, error) {
	owner := make([]byte, 16)
	_, _ = rand.Read(owner) // which never fails
	r, end, err := k.begin(ctx, o.wait)
	defer end()
	if err != nil {
		return nil, err
	}
	a := &acquire{request: r, keys: keys, o: o, owner: hex.EncodeToString(owner), base: base}
	var lock *Lock
	if len(keys) == 1 {
		lock, err = a.one(keys[0])
	} else {
		lock, err = a.all()
	}
	event := Event{Kind: Granted, Key: keys[0], Duration: now() - r.began}
	switch {
	case err == nil:
		event.Version = lock.Version()
		k.onEvent(event)
		return lock, nil
	case errors.Is(err, ErrBusy):
		event.Kind = Busy
		k.onEvent(event)
	}
	if a.inDoubt || a.inQueue {
		for _, key := range keys {
			k.abandon(key, a.owner, a.inQueue, o.ttl)
		}
	}
	return nil, err
}

func (a *acquire) busy() error {
	return fail(ErrBusy, fmt.Sprintf("another client holds lock %q", strings.Join(a.keys, ", ")))
}

func (a *acquire) args(key string, ttl time.Duration) []any {
	o := a.o
	return []any{key, interval(ttl), a.owner, o.value, fmt.Sprint(o.priority), interval(o.cleanup), fmt.Sprint(o.force),
		fmt.Sprint(o.slots), interval(o.atLeast), interval(o.delay), fmt.Sprint(o.lazy), fmt.Sprint(o.shared)}
}

// granted: it counts as ours only if we know when the lease started. errAgain: it is lost already.
func (a *acquire) granted(versions []int64, sentAt, lasts time.Duration) (*Lock, error) {
	if now()-sentAt > part(a.o.ttl, confirmPart) {
		for i, key := range a.keys {
			rows, sent, err := a.ask(stmt.Refresh, key, fmt.Sprint(versions[i]), a.owner, nil)
			if err != nil {
				return nil, err
			}
			if rows[0][0] == nil {
				if a.late == 0 {
					a.late = now()
				}
				if now() >= a.late+a.k.timeout {
					return nil, fail(ErrUnreachable, "the server takes longer to answer than the TTL")
				}
				return nil, errAgain
			}
			if i == 0 {
				sentAt = sent
			}
			lasts = min(lasts, millis(rows[0][0]))
		}
	}
	grant := newGrant(a.k, a.keys, versions, a.owner, a.o)
	lock := &Lock{keeper: a.k, grant: grant}
	lock.ctx, grant.lost = context.WithCancelCause(a.base)
	if !a.k.add(grant, sentAt, lasts) {
		grant.lost(nil)
		return nil, context.Cause(a.k.ctx)
	}
	a.inDoubt, a.inQueue = false, false
	return lock, nil
}

// try: an error that is an answer leaves nothing behind.
func (a *acquire) try(sql string, args ...any) (*string, time.Duration, error) {
	a.inDoubt = true
	rows, sentAt, err := a.ask(sql, args...)
	if err != nil || rows[0][0] == nil {
		a.inDoubt = a.unanswered // the holder may be our own first try
		a.late = 0
		return nil, 0, err
	}
	return rows[0][0], sentAt, nil
}

func (a *acquire) one(key string) (*Lock, error) {
	tickets := a.server.tickets
	if value, ok := a.o.value.(string); ok && len(value) > maxTicketBytes {
		tickets = false
	}
	for missed := 0; ; {
		// a try with a priority would not give the holder the time to yield
		if a.o.priority == 0 || !tickets || now() >= a.waitUntil {
			version, sentAt, err := a.try(stmt.Try, a.args(key, a.o.ttl)...)
			if err != nil {
				return nil, err
			}
			if version != nil {
				lock, err := a.granted([]int64{number(version)}, sentAt, never)
				if err == errAgain {
					continue
				}
				return lock, err
			}
		}
		t := now()
		if t >= a.waitUntil {
			return nil, a.busy()
		}
		if !tickets {
			if _, err := a.rest(min(t+jitter(poll), a.waitUntil), nil); err != nil {
				return nil, err
			}
			continue
		}
		ticket, err := a.enqueue(key, t)
		if err != nil {
			return nil, err
		}
		if ticket == nil {
			continue
		}
		lock, err := a.await(key, *ticket)
		switch err {
		case errAgain:
		case errMissed:
			if missed++; missed > 1 {
				return nil, &Error{Kind: ErrDeadlock, Code: "40P01", Message: fmt.Sprintf("deadlock detected while waiting for lock %q", key)}
			}
		default:
			return lock, err
		}
	}
}

// enqueue returns a ticket, or nil if there is no room for one now.
func (a *acquire) enqueue(key string, t time.Duration) (*string, error) {
	var wait any
	if a.waitUntil != never {
		wait = interval(a.waitUntil - t)
	}
	a.inQueue = true
	ticket, err := a.value(stmt.Enqueue, append(a.args(key, max(min(a.o.ttl, claimTTL), a.o.atLeast)), wait)...)
	if err == nil {
		return ticket, nil
	}
	a.inQueue = a.unanswered
	if sqlstate(err) != "53400" || now() >= a.waitUntil {
		return nil, err
	}
	_, err = a.rest(min(now()+poll, a.waitUntil), nil)
	return nil, err
}

// await the lock of a ticket. errAgain: it is unknown, or was lost; errMissed: a try shall say why.
func (a *acquire) await(key, ticket string) (*Lock, error) {
	k := a.k
	w := k.wait(number(&ticket))
	defer k.forget(number(&ticket))
	asked := now()
	silentAt := func() (at time.Duration) {
		k.with(func() { at = max(asked, k.aliveAt) + k.timeout })
		return at
	}
	for {
		heard, err := a.rest(min(a.waitUntil, silentAt()), w.wake)
		if err != nil {
			return nil, err
		}
		if !heard && now() < a.waitUntil {
			if now() < silentAt() {
				continue
			}
			return nil, fail(ErrUnreachable, fmt.Sprintf("no answer from the server in %v", k.timeout))
		}
		rows, sentAt, err := a.ask(stmt.Claim, key, ticket, a.owner, interval(a.o.ttl))
		if err != nil {
			return nil, err
		}
		asked = now()
		state, version, lasts := rows[0][0], rows[0][1], rows[0][2]
		switch {
		case state == nil: // the server was restarted, or it is another one
			return nil, errAgain
		case *state == "granted":
			if lasts == nil {
				a.inQueue = false
				return nil, errAgain
			}
			return a.granted([]int64{number(version)}, sentAt, millis(lasts))
		case *state == "missed":
			a.inQueue = false
			return nil, a.missed(w)
		case *state != "waiting":
			a.inQueue = false
			return nil, errAgain
		}
		if asked >= after(a.waitUntil, overdue) {
			gone, err := a.value(stmt.Dequeue, ticket)
			if err != nil {
				return nil, err
			}
			if text(gone) == "true" {
				a.inQueue = false
				return nil, a.busy()
			}
			continue
		}
		// a false event is not acted upon for a while, and the server may be late
		if heard {
			_, err = a.rest(now()+poll, nil)
		} else if heard, err = a.rest(now()+poll, w.wake); heard {
			w.tell()
		}
		if err != nil {
			return nil, err
		}
	}
}

// missed: the server says that the wait is over. The event says why, but need not have come.
func (a *acquire) missed(w *wait) error {
	var said error
	a.k.with(func() { said = w.missed })
	switch {
	case said != nil && said != ErrBusy:
		return said
	case said == nil && a.o.priority > 0:
		return &Error{Kind: ErrRefused, Code: "55P03", Message: fmt.Sprintf("the holder of lock %q did not yield", a.keys[0])}
	case said == ErrBusy || now() >= a.waitUntil:
		return a.busy()
	}
	return errMissed
}

// all: several keys have no ticket. It asks politely, without a place in the queue.
func (a *acquire) all() (*Lock, error) {
	o := a.o
	each := func(value any) string {
		values := make([]any, len(a.keys))
		for i := range values {
			values[i] = value
		}
		return array(values)
	}
	keys := make([]any, len(a.keys))
	for i, key := range a.keys {
		keys[i] = key
	}
	for pause := backoffFirst; ; pause = min(2*pause, poll) {
		granted, sentAt, err := a.try(stmt.TryAll, array(keys), interval(o.ttl), a.owner, o.value, fmt.Sprint(o.priority),
			each(o.slots), each(o.shared))
		if err != nil {
			return nil, err
		}
		if granted != nil {
			var versions []int64
			for _, version := range list(granted) {
				versions = append(versions, number(&version))
			}
			if lock, err := a.granted(versions, sentAt, never); err != errAgain {
				return lock, err
			}
			continue
		}
		if now() >= a.waitUntil {
			return nil, a.busy()
		}
		if _, err := a.rest(min(now()+jitter(pause), a.waitUntil), nil); err != nil {
			return nil, err
		}
	}
}

// release stops the renewal, then releases. A grant that is not there was lost, unless an earlier release got no
// answer.
func (g *grant) release(ctx context.Context) (err error) {
	k := g.keeper
	k.with(func() {
		if !g.isHeld(now()) {
			err = g.error()
		}
		k.drop(g)
	})
	defer g.lost(nil)
	defer func() {
		if err == nil {
			return
		}
		for _, l := range g.leases {
			// of the others, the server has said that they are gone
			if l.state != lost || l.reason == LostDeadline {
				k.abandon(l.key, g.owner, false, g.ttl)
			}
		}
	}()
	if err != nil {
		return err
	}
	r, end, err := k.begin(ctx, 0)
	defer end()
	if err != nil {
		return err
	}
	rows, _, err := r.ask(stmt.Release, column(g.leases, func(l *lease) any { return l.key }),
		column(g.leases, func(l *lease) any { return l.version }), column(g.leases, func(*lease) any { return g.owner }))
	if err != nil {
		return err
	}
	k.with(func() {
		for i, l := range g.leases {
			if said := text(rows[i][0]); said == "released" || r.unanswered {
				l.tell(Released, 0, "")
			} else {
				l.state = held
				l.gone(said)
				err = g.error()
			}
		}
	})
	return err
}

// interval is a parameter; 0.5 us more are nothing, and never is NULL.
func interval(d time.Duration) any {
	if d == never {
		return nil
	}
	return fmt.Sprintf("%d microseconds", d.Microseconds())
}
