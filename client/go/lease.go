package dlock

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// Times, and parts of the TTL; docs/protocol.md says why.
const (
	defaultTTL     = 20 * time.Second
	defaultTimeout = 10 * time.Second // how long the server may be silent
	electTTL       = 10 * time.Second

	leasePart    = 0.9     // a lock is ours for this part of its TTL after the question was sent
	dangerPart   = 0.6     // after this part without a renewal the program is warned
	periodPart   = 1.0 / 3 // of renewals, with a jitter of a tenth
	togetherPart = 0.2     // what is due this soon is renewed together with what is due now
	answerPart   = 1.0 / 3 // how long the server may take to answer a renewal
	confirmPart  = 0.25    // a grant whose answer took longer is confirmed by a refresh
	refusedPart  = 0.1     // until the next try after the server refused a renewal
	never        = time.Duration(math.MaxInt64)

	claimTTL     = 10 * time.Second       // the longest TTL of a ticket's grant until it is claimed
	poll         = 250 * time.Millisecond // between questions about tickets where there is no LISTEN
	overdue      = time.Second            // how long the server may take to say that a wait is over
	short        = 100 * time.Millisecond // a lock that is held for less needs no connection for its renewal
	idle         = 5 * time.Second        // the connection for renewals is closed after so long without a lock
	tick         = time.Second            // the longest sleep: timers do not count the time of a suspension
	hearPause    = 250 * time.Millisecond // between questions that events lead to
	hearBurst    = 4                      // of them at once
	backoffFirst = 50 * time.Millisecond  // pauses between two tries
	backoffLast  = time.Second
	abandonFirst = 200 * time.Millisecond
	abandonLast  = time.Minute

	maxBatch       = 10_000
	maxEarly       = 256
	maxTicketBytes = 1024
)

func part(of time.Duration, p float64) time.Duration { return time.Duration(p * float64(of)) }

func jitter(d time.Duration) time.Duration { return part(d, 0.9+0.2*rand.Float64()) }

// after does not overflow.
func after(at, d time.Duration) time.Duration {
	if d > never-at {
		return never
	}
	return at + d
}

// EventKind says what has happened to a lock.
type EventKind string

// Kinds of events. The Duration of an Event is what was waited, or what is left.
const (
	Granted  EventKind = "granted"  // Duration: waited
	Busy     EventKind = "busy"     // Duration: waited
	Renewed  EventKind = "renewed"  //
	Danger   EventKind = "danger"   // not renewed for long; Duration: left until it is lost
	Asked    EventKind = "asked"    // to finish; Duration: left; Reason: AskedPriority or AskedMaxHold
	Lost     EventKind = "lost"     // Reason: one of the Lost... constants
	Released EventKind = "released" //
)

// Reasons of Lost and Asked.
const (
	LostDeadline  = "deadline"  // nobody knows; the server did not answer in time
	LostPreempted = "preempted" // by a higher priority
	LostForced    = "forced"    // somebody has taken it away
	LostExpired   = "expired"   // the server says so
	LostClosed    = "closed"    // by Locks.Close
	AskedPriority = "priority"  // a request with a higher priority wants it
	AskedMaxHold  = "max_hold"  // it was held for MaxHold
)

// Event is told to the function of OnEvent.
type Event struct {
	Kind     EventKind
	Key      string
	Version  int64
	Duration time.Duration
	Reason   string
}

type leaseState int

const (
	held leaseState = iota
	lost
	released
)

// lease is one grant of one key. The keeper's mutex protects all that changes in it.
type lease struct {
	grant   *grant
	key     string
	version int64
	since   time.Duration
	ends    time.Duration // by MaxHold

	state    leaseState
	reason   string // why it is lost
	deadline time.Duration
	dangerAt time.Duration
	due      time.Duration
	renews   bool // until MaxHold
	asked    bool // the server's state is preempting
	heard    bool // an event has named it, so it is asked about
	forced   bool
	alone    bool // the server refused a statement that renewed it together with others
}

// grant has the leases of one request, one for each key.
type grant struct {
	keeper     *keeper
	owner      string
	ttl        time.Duration
	leases     []*lease
	lost       context.CancelCauseFunc // ends the context of the lock
	asked      chan struct{}           // is closed when the holder is asked to finish
	askedWhy   string
	askedUntil time.Duration
}

func newGrant(k *keeper, keys []string, versions []int64, owner string, o *options) *grant {
	g := &grant{keeper: k, owner: owner, ttl: o.ttl, asked: make(chan struct{}), askedUntil: never, lost: func(error) {}}
	for i, key := range keys {
		t := now()
		g.leases = append(g.leases, &lease{
			grant: g, key: key, version: versions[i], since: t, ends: after(t, o.maxHold), renews: !o.manual,
		})
	}
	return g
}

// renewed: the server answered a question that was sent then. Its expiry counts from later on, and may be sooner
// than the TTL (a policy's max_hold).
func (l *lease) renewed(sentAt, lasts time.Duration) {
	ttl := min(l.grant.ttl, lasts)
	l.deadline = min(sentAt+part(ttl, leasePart), l.ends)
	l.due = sentAt + jitter(part(ttl, periodPart))
	if l.dangerAt = never; l.renews {
		l.dangerAt = sentAt + part(ttl, dangerPart)
	}
}

func (l *lease) isHeld(t time.Duration) bool { return l.state == held && t < l.deadline }

// gone: the server says that it is free, or another's. Before our deadline it cannot have expired, so if another
// client holds it, it was taken away.
func (l *lease) gone(state string) {
	switch {
	case l.asked:
		l.lose(LostPreempted)
	case l.forced || state == "held_by_other":
		l.lose(LostForced)
	default:
		l.lose(LostExpired)
	}
}

func (l *lease) lose(reason string) {
	if l.state != held {
		return
	}
	l.state, l.reason = lost, reason
	l.grant.lost(l.grant.error())
	l.tell(Lost, 0, reason)
}

// ask tells the holder to finish and to release.
func (l *lease) ask(reason string, until, t time.Duration) {
	g := l.grant
	if g.askedWhy == "" {
		g.askedWhy = reason
		close(g.asked)
	}
	g.askedUntil = min(g.askedUntil, until)
	l.tell(Asked, max(until-t, 0), reason)
}

func (l *lease) tell(kind EventKind, d time.Duration, reason string) {
	l.grant.keeper.tell(Event{kind, l.key, l.version, d, reason})
}

func (g *grant) isHeld(t time.Duration) bool {
	all := true
	for _, l := range g.leases {
		if l.state == held && t >= l.deadline {
			l.lose(LostDeadline)
		}
		all = all && l.state == held
	}
	return all
}

func (g *grant) deadline() time.Duration {
	until := never
	for _, l := range g.leases {
		until = min(until, l.deadline)
	}
	return until
}

// error says why it is not held.
func (g *grant) error() *Error {
	for _, l := range g.leases {
		if l.state == lost {
			return fail(ErrLost, fmt.Sprintf("lock %q: %s", l.key, l.reason))
		}
	}
	return fail(ErrLost, fmt.Sprintf("lock %q was released", g.leases[0].key))
}

// column is the array of what the leases have.
func column(leases []*lease, of func(*lease) any) string {
	values := make([]any, len(leases))
	for i, l := range leases {
		values[i] = of(l)
	}
	return array(values)
}
