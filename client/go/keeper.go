package dlock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"dlock.example/pg-dlock/internal/stmt"
)

// keeper renews all locks of a Locks object and asks about all of its waits, on a connection of its own. Its
// watch, a timer that never talks to a server, tells a loss in time whatever the server does.
type keeper struct {
	source  Source
	timeout time.Duration
	schema  string // that of the options
	onEvent func(Event)
	ctx     context.Context // ends with ErrClosed
	cancel  context.CancelCauseFunc
	server  atomic.Pointer[server]
	stale   atomic.Bool   // the server is to be asked again
	learns  chan struct{} // is full while somebody asks what the server has
	ended   sync.WaitGroup

	mu        sync.Mutex // the rest, and all leases and grants
	leases    map[*lease]struct{}
	waits     map[int64]*wait
	early     []int64 // tickets that events have named before they were known
	abandoned []*abandoned
	told      []Event // to be delivered without the mutex
	runs      bool
	woken     bool
	wakeRest  context.CancelFunc
	listens   bool
	aliveAt   time.Duration // when the server last answered the keeper
	askedAt   time.Duration // about tickets
	hearAt    time.Duration
	watch     *time.Timer
	watchAt   time.Duration
}

// server is what was learnt about it.
type server struct {
	schema  string
	tickets bool
}

func (s *server) sql(statement string) string {
	return strings.ReplaceAll(statement, "@.", s.schema+".")
}

// wait is a request that waits by ticket.
type wait struct {
	wake   chan struct{}
	missed error // the event said that it is over, and why; ErrBusy: without an error
}

// abandoned is a request that ended without an answer: it may have been granted, or still be queued.
type abandoned struct {
	key, owner        string
	inQueue           bool
	until, due, pause time.Duration
}

// question is what the keeper sends, and what it does with the answer. Both are called with the mutex.
type question struct {
	sql      string
	args     []any
	timeout  time.Duration
	answered func(rows []Row, sentAt time.Duration)
	failed   func(err *Error)
}

func newKeeper(source Source) *keeper {
	k := &keeper{
		source: source, timeout: defaultTimeout, onEvent: func(Event) {}, learns: make(chan struct{}, 1),
		leases: map[*lease]struct{}{}, waits: map[int64]*wait{}, watchAt: never, wakeRest: func() {},
	}
	k.ctx, k.cancel = context.WithCancelCause(context.Background())
	return k
}

// with calls f with the mutex, and then tells the program what has happened.
func (k *keeper) with(f func()) {
	k.mu.Lock()
	f()
	told := k.told
	k.told = nil
	k.mu.Unlock()
	for _, event := range told {
		k.onEvent(event)
	}
}

func (k *keeper) tell(event Event) { k.told = append(k.told, event) }

// Statements

// askOn sends one statement. If it gets no answer in time, its connection is closed.
func (k *keeper) askOn(ctx context.Context, conn Conn, timeout time.Duration, sql string, args ...any) ([]Row, time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if s := k.server.Load(); s != nil {
		sql = s.sql(sql)
	}
	sentAt := now()
	rows, err := conn.Query(ctx, sql, args...)
	if err != nil {
		return nil, sentAt, translate(err)
	}
	return rows, sentAt, nil
}

// ask sends a statement of a request, on a connection of the user's pool.
func (k *keeper) ask(ctx context.Context, sql string, args ...any) ([]Row, time.Duration, error) {
	began := now()
	borrowing, cancel := context.WithTimeout(ctx, k.timeout)
	conn, err := k.source.Borrow(borrowing)
	cancel()
	if err != nil {
		return nil, 0, translate(err)
	}
	rows, sentAt, err := k.askOn(ctx, conn, max(k.timeout-(now()-began), time.Millisecond), sql, args...)
	// a server that does not accept writes, or goes down, is not asked again
	conn.Close(errors.Is(err, ErrUnreachable))
	if errors.Is(err, ErrNotReady) {
		k.stale.Store(true)
	}
	return rows, sentAt, err
}

type asker func(sql string, args ...any) ([]Row, time.Duration, error)

// learn finds out what the server has, and the process that answers.
func (k *keeper) learn(ask asker) (pid string, err error) {
	rows, _, err := ask(stmt.Hello)
	if err != nil {
		return "", err
	}
	schema := k.schema
	if schema == "" && rows[0][1] != nil {
		schema = *rows[0][1]
	}
	if schema == "" {
		return "", fail(ErrNotReady,
			"the database has no extension dlock: CREATE EXTENSION dlock, or name the schema of the portable edition")
	}
	features, _, err := ask((&server{schema: schema}).sql(stmt.Features))
	if e := (*Error)(nil); errors.As(err, &e) && e.Code == "42883" {
		e.Message = "this client needs a dlock with dlock_features(): update the server's package, then ALTER EXTENSION dlock UPDATE"
	}
	if err != nil {
		return "", err
	}
	k.server.Store(&server{schema, slices.Contains(list(features[0][2]), "tickets")})
	k.stale.Store(false)
	return *rows[0][0], nil
}

// know returns what the server has, and asks for it before the first statement.
func (k *keeper) know(ctx context.Context) (*server, error) {
	if s := k.server.Load(); s != nil && !k.stale.Load() {
		return s, nil
	}
	select {
	case k.learns <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-k.learns }()
	if k.server.Load() == nil || k.stale.Load() {
		_, err := k.learn(func(sql string, args ...any) ([]Row, time.Duration, error) { return k.ask(ctx, sql, args...) })
		if err != nil {
			return nil, err
		}
	}
	return k.server.Load(), nil
}

// Leases

// add: it is renewed from now on. False: these Locks were closed meanwhile.
func (k *keeper) add(g *grant, sentAt, lasts time.Duration) (added bool) {
	k.with(func() {
		if added = k.ctx.Err() == nil; !added {
			return
		}
		for _, l := range g.leases {
			l.renewed(sentAt, lasts)
			k.leases[l] = struct{}{}
		}
		k.look(now() + short)
		if g.leases[0].due < now()+tick {
			k.wake()
		}
	})
	return added
}

// drop: it is not renewed any more.
func (k *keeper) drop(g *grant) {
	for _, l := range g.leases {
		delete(k.leases, l)
		if l.state == held {
			l.state = released
		}
	}
	if len(k.leases) == 0 && k.watch != nil {
		k.watch.Stop()
		k.watchAt = never
	}
}

// look at all leases then. This timer never waits for a server.
func (k *keeper) look(at time.Duration) {
	if k.ctx.Err() != nil || at >= k.watchAt {
		return
	}
	k.watchAt = at
	d := min(max(at-now(), time.Millisecond), tick)
	if k.watch != nil {
		k.watch.Reset(d)
		return
	}
	k.watch = time.AfterFunc(d, func() {
		k.with(func() {
			k.watchAt = never
			k.look(k.expire(now()))
			if k.needsConnection(now()) {
				k.start()
			}
		})
	})
}

// expire finds what is lost or in danger by now, and returns when to look again.
func (k *keeper) expire(t time.Duration) time.Duration {
	soon := never
	for l := range k.leases {
		if l.state == held && t >= l.deadline {
			l.lose(LostDeadline)
		}
		if l.state != held {
			delete(k.leases, l)
			continue
		}
		if t >= l.dangerAt {
			l.dangerAt = never
			l.tell(Danger, l.deadline-t, "")
		}
		last := l.ends - part(l.grant.ttl, leasePart)
		if l.renews && l.ends != never && t >= last {
			l.renews, l.dangerAt = false, never
			l.ask(AskedMaxHold, l.deadline, t)
		}
		soon = min(soon, l.deadline, l.dangerAt)
		if l.renews && l.ends != never {
			soon = min(soon, last)
		}
		if t < l.since+short {
			soon = min(soon, l.since+short)
		}
	}
	return soon
}

// close releases nothing: what is held is told lost, and ends by its TTL.
func (k *keeper) close() {
	k.cancel(fail(ErrClosed, "these locks are closed"))
	k.with(func() {
		if k.watch != nil {
			k.watch.Stop()
		}
		for l := range k.leases {
			l.lose(LostClosed)
		}
		clear(k.leases)
		k.wake()
	})
	k.ended.Wait()
}

// Waits and abandoned requests

func (k *keeper) wait(ticket int64) *wait {
	w := &wait{wake: make(chan struct{}, 1)}
	k.with(func() {
		k.waits[ticket] = w
		if slices.Contains(k.early, ticket) {
			w.tell()
		}
		k.start()
	})
	return w
}

func (w *wait) tell() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (k *keeper) forget(ticket int64) { k.with(func() { delete(k.waits, ticket) }) }

func (k *keeper) abandon(key, owner string, inQueue bool, ttl time.Duration) {
	t := now()
	k.with(func() {
		k.abandoned = append(k.abandoned, &abandoned{key, owner, inQueue, t + min(ttl, abandonLast), t, abandonFirst})
		k.start()
	})
}

// hear an event. Every role may send on the channel, so it only leads to a question.
func (k *keeper) hear(payload string) {
	var said struct {
		Event, Key, Reason, Code string
		Version, Ticket          int64
	}
	if json.Unmarshal([]byte(payload), &said) != nil {
		return
	}
	k.with(func() {
		switch said.Event {
		case "granted", "missed":
			w := k.waits[said.Ticket]
			if w == nil {
				k.early = append(k.early, said.Ticket)
				k.early = k.early[max(len(k.early)-maxEarly, 0):]
				return
			}
			if said.Event == "missed" {
				w.missed = ErrBusy
				if said.Code != "" {
					w.missed = &Error{Kind: kindOf(said.Code), Code: said.Code, Message: said.Reason}
				}
			}
			w.tell()
		case "preempt", "expired", "forced":
			for l := range k.leases {
				if l.key == said.Key && l.version == said.Version {
					l.heard = true
					l.forced = l.forced || said.Event == "forced"
				}
			}
		}
	})
}

// The connection

func (k *keeper) needsConnection(t time.Duration) bool {
	k.abandoned = slices.DeleteFunc(k.abandoned, func(a *abandoned) bool { return t >= a.until })
	if len(k.waits) > 0 || len(k.abandoned) > 0 {
		return true
	}
	for l := range k.leases {
		if t >= l.since+short {
			return true
		}
	}
	return false
}

func (k *keeper) wake() {
	k.woken = true
	k.wakeRest()
}

func (k *keeper) start() {
	k.wake()
	if !k.runs && k.ctx.Err() == nil {
		k.runs = true
		k.ended.Go(k.keep)
	}
}

// keep sends what is to be sent, until nothing needs a connection.
func (k *keeper) keep() {
	var conn Conn
	var retryAt time.Duration
	pause, usedAt := backoffFirst, now()
	for {
		t := now()
		over := false
		k.with(func() {
			if k.needsConnection(t) {
				usedAt = t
			}
			over = k.ctx.Err() != nil || (usedAt < t && (conn == nil || t >= usedAt+idle))
			k.runs = !over
		})
		if over {
			if conn != nil {
				conn.Close(k.ctx.Err() != nil)
			}
			return
		}
		var err error
		var asked bool
		if conn == nil && t >= retryAt {
			conn, err = k.connect()
		}
		if conn != nil && err == nil {
			asked, err = k.put(conn)
		}
		if err == nil && !asked {
			err = k.rest(conn, retryAt)
		}
		if err != nil {
			slog.Debug("dlock: renewal", "error", err)
			if conn != nil {
				conn.Close(true)
				conn = nil
			}
			if isTurnedAway(translate(err)) {
				k.with(func() { k.aliveAt = now() })
			}
			retryAt = now() + jitter(pause)
			pause = min(2*pause, backoffLast)
		} else if asked {
			pause = backoffFirst
		}
	}
}

// connect, and listen, if there is no pooler in between. What was told meanwhile was missed.
func (k *keeper) connect() (Conn, error) {
	ctx, cancel := context.WithTimeout(k.ctx, k.timeout)
	defer cancel()
	conn, err := k.source.Open(ctx)
	if err != nil {
		return nil, translate(err)
	}
	ask := func(sql string, args ...any) ([]Row, time.Duration, error) {
		return k.askOn(k.ctx, conn, k.timeout, sql, args...)
	}
	pid, err := k.learn(ask)
	listens := err == nil && conn.PID() != 0 && pid == fmt.Sprint(conn.PID())
	if listens {
		_, _, err = ask(stmt.Listen)
	}
	k.with(func() {
		k.listens, k.askedAt = listens, 0
		if listens {
			for l := range k.leases {
				l.heard = true
			}
		}
	})
	return conn, err
}

// put sends what is to be sent now. An error means that the connection is of no use.
func (k *keeper) put(conn Conn) (asked bool, err error) {
	var q *question
	k.with(func() { q = k.plan(now()) })
	if q == nil {
		return false, nil
	}
	rows, sentAt, err := k.askOn(k.ctx, conn, q.timeout, q.sql, q.args...)
	k.with(func() {
		if err != nil {
			if q.failed != nil {
				q.failed(translate(err))
			}
			return
		}
		k.aliveAt = now()
		q.answered(rows, sentAt)
	})
	if errors.Is(err, ErrUnreachable) {
		return true, err
	}
	return true, nil
}

// rest until it is time for the next question, a notification has come, or somebody wakes the keeper.
func (k *keeper) rest(conn Conn, retryAt time.Duration) (err error) {
	var ctx context.Context
	var listens bool
	k.with(func() {
		at := retryAt
		if conn != nil {
			at = k.nextAt()
		}
		d := min(max(at-now(), 0), tick)
		if k.woken {
			d = 0
		}
		listens = conn != nil && k.listens
		ctx, k.wakeRest = context.WithTimeout(k.ctx, d)
	})
	if listens {
		var payload string
		if payload, err = conn.Wait(ctx); err == nil {
			k.hear(payload)
		} else if ctx.Err() != nil {
			err = nil
		}
	} else {
		<-ctx.Done()
	}
	k.with(func() {
		k.wakeRest()
		k.woken, k.wakeRest = false, func() {}
	})
	return err
}

// nextAt is when to plan again, if nothing happens.
func (k *keeper) nextAt() time.Duration {
	at := never
	for _, a := range k.abandoned {
		at = min(at, a.due)
	}
	if len(k.waits) > 0 {
		at = min(at, k.askedAt+k.ticketPause())
	}
	for l := range k.leases {
		at = min(at, l.due)
		if l.heard {
			at = min(at, k.hearAt)
		}
	}
	return at
}

// What to send

func (k *keeper) plan(t time.Duration) *question {
	if q := k.renewal(t); q != nil {
		return q
	}
	if q := k.tickets(t); q != nil {
		return q
	}
	return k.giveBack(t)
}

// renewal is one statement for all that are due, and for those that events have named. Locks of a statement
// that failed follow one by one.
func (k *keeper) renewal(t time.Duration) *question {
	soon := func(l *lease) time.Duration { return t + part(l.grant.ttl, togetherPart) }
	isWanted := func(l *lease, at time.Duration) bool { return l.due <= at || (l.heard && t >= k.hearAt) }
	var ripe, batch, heard []*lease
	for l := range k.leases {
		if !l.isHeld(t) || !isWanted(l, soon(l)) {
			continue
		}
		if isWanted(l, t) {
			ripe = append(ripe, l)
		}
		if !l.alone && len(batch) < maxBatch {
			batch = append(batch, l)
		}
	}
	if len(ripe) == 0 {
		return nil
	}
	if !slices.ContainsFunc(ripe, func(l *lease) bool { return !l.alone }) {
		batch = []*lease{slices.MinFunc(ripe, func(a, b *lease) int { return int(a.deadline - b.deadline) })}
	}
	shortest := never
	renew := make([]any, len(batch))
	for i, l := range batch {
		if l.heard {
			heard = append(heard, l)
			l.heard = false
		}
		shortest = min(shortest, l.grant.ttl)
		renew[i] = l.renews && l.due <= soon(l)
	}
	if heard != nil {
		k.hearAt = max(k.hearAt, t-(hearBurst-1)*hearPause) + hearPause
	}
	timeout := max(part(shortest, answerPart), 20*time.Millisecond)
	return &question{
		sql: stmt.Renew,
		args: []any{
			column(batch, func(l *lease) any { return l.key }),
			column(batch, func(l *lease) any { return l.version }),
			column(batch, func(l *lease) any { return l.grant.owner }),
			array(renew),
			fmt.Sprintf("%dms", max((timeout/3).Milliseconds(), 1)),
		},
		timeout: timeout,
		answered: func(rows []Row, sentAt time.Duration) {
			for _, row := range rows {
				i := int(number(row[0])) - 1
				k.renewed(batch[i], renew[i] == true, row, sentAt)
			}
		},
		failed: func(err *Error) {
			for _, l := range heard {
				l.heard = true
			}
			if err.Kind == ErrUnreachable {
				return
			}
			// the server is there but refused it, perhaps because of one of them
			for _, l := range batch {
				if l.alone || len(batch) == 1 {
					l.due = now() + part(l.grant.ttl, refusedPart)
				}
				l.alone = true
			}
		},
	}
}

func (k *keeper) renewed(l *lease, wasRenewed bool, row Row, sentAt time.Duration) {
	t := now()
	if !l.isHeld(t) {
		return // a lost lock never comes back
	}
	lasts, state, yields := row[1], text(row[2]), row[3]
	l.alone = false
	if (state != "held" && state != "preempting") || (wasRenewed && lasts == nil) {
		l.gone(state)
		return
	}
	if !l.heard {
		l.forced = false
	}
	if wasRenewed {
		l.renewed(sentAt, millis(lasts))
		l.tell(Renewed, 0, "")
	} else if l.due <= t {
		l.due = sentAt + part(l.grant.ttl, periodPart)
	}
	if state == "preempting" && !l.asked {
		l.ask(AskedPriority, t+max(millis(yields), 0), t)
	}
	l.asked = state == "preempting"
}

func (k *keeper) ticketPause() time.Duration {
	if k.listens {
		return k.timeout / 2
	}
	return poll
}

// tickets is one question for all requests that wait.
func (k *keeper) tickets(t time.Duration) *question {
	if len(k.waits) == 0 || (k.askedAt != 0 && t < k.askedAt+k.ticketPause()) {
		return nil
	}
	k.askedAt = t
	var all []any
	for ticket := range k.waits {
		if len(all) < maxBatch {
			all = append(all, ticket)
		}
	}
	return &question{
		sql:     stmt.Tickets,
		args:    []any{array(all)},
		timeout: k.timeout,
		answered: func(rows []Row, _ time.Duration) {
			for _, row := range rows {
				if w := k.waits[number(row[0])]; w != nil {
					w.tell()
				}
			}
		},
	}
}

// giveBack releases by owner what may have been granted unheard. If nothing was there, its request may be slower
// than our release, so it is tried again later.
func (k *keeper) giveBack(t time.Duration) *question {
	var due []*abandoned
	var keys, owners, queued []any
	for _, a := range k.abandoned {
		if t >= a.due && len(due) < maxBatch {
			due = append(due, a)
			keys, owners, queued = append(keys, a.key), append(owners, a.owner), append(queued, a.inQueue)
			a.due = t + a.pause
			a.pause *= 2
		}
	}
	if due == nil {
		return nil
	}
	sql := stmt.GiveBackPortable
	if s := k.server.Load(); s != nil && s.tickets {
		sql = stmt.GiveBack
	}
	return &question{
		sql:     sql,
		args:    []any{array(keys), array(owners), array(queued)},
		timeout: k.timeout,
		answered: func(rows []Row, _ time.Duration) {
			for i, row := range rows {
				if text(row[0]) == "released" {
					k.abandoned = slices.DeleteFunc(k.abandoned, func(a *abandoned) bool { return a == due[i] })
				}
			}
		},
	}
}

// Values

var escape = strings.NewReplacer(`"`, `\"`, `\`, `\\`)

func array(values []any) string {
	quoted := make([]string, len(values))
	for i, value := range values {
		quoted[i] = `"` + escape.Replace(fmt.Sprint(value)) + `"`
	}
	return "{" + strings.Join(quoted, ",") + "}"
}

// list splits an array of numbers or of names, which need no quotes.
func list(array *string) []string {
	return strings.FieldsFunc(text(array), func(r rune) bool { return strings.ContainsRune("{},", r) })
}

func text(value *string) string {
	if value == nil {
		return ""
	}
	return *value
}

func number(value *string) int64 {
	n, _ := strconv.ParseInt(text(value), 10, 64)
	return n
}

func millis(value *string) time.Duration { return time.Duration(number(value)) * time.Millisecond }
