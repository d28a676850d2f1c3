// Package dlock has locks with a TTL and a fencing token, which the extension dlock keeps in PostgreSQL.
//
// A lock is renewed in the background. Its context ends before the server can grant it to somebody else, and a
// fenced transaction fails if it is not ours any more. See pgxdlock and sqldlock for a pool of pgx or of
// database/sql, dlocktest for unit tests, and docs/protocol.md of dlock for what happens.
package dlock

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"sync"
	"time"

	"dlock.example/pg-dlock/internal/stmt"
)

// Version of this package.
const Version = "1.0.0"

// Locks has all locks of a program in one database. It is safe for use by many goroutines.
type Locks struct{ keeper *keeper }

// LocksOption is an option of New.
type LocksOption func(*keeper)

// Timeout is how long the server may be silent before a call fails with ErrUnreachable; 10 s if not given.
func Timeout(d time.Duration) LocksOption { return func(k *keeper) { k.timeout = d } }

// Schema of the functions, if they were installed without an extension.
func Schema(name string) LocksOption { return func(k *keeper) { k.schema = name } }

// OnEvent is told each event, for metrics. It is called by several goroutines, should return soon, and must not
// use these Locks.
func OnEvent(f func(Event)) LocksOption { return func(k *keeper) { k.onEvent = f } }

// New is called by the packages of the drivers: use pgxdlock.New or sqldlock.New.
func New(source Source, opts ...LocksOption) *Locks {
	k := newKeeper(source)
	for _, opt := range opts {
		opt(k)
	}
	return &Locks{k}
}

// Close stops the renewal. What is still held is told lost, and ends by its TTL. It does not close the pool.
func (l *Locks) Close() { l.keeper.close() }

type options struct {
	ttl, wait, cleanup, atLeast, delay, maxHold time.Duration
	keys                                        []string // beside the first
	value                                       any
	shared, force, lazy, manual                 bool
	slots, priority                             int
}

// Option is an option of a request.
type Option func(*options)

// TTL is how long the lock outlives its holder; 20 s if not given. The lock is renewed as long as it is held.
func TTL(d time.Duration) Option { return func(o *options) { o.ttl = d } }

// Wait is how long to wait before the request fails with ErrBusy; 0 does not wait. If it is not given, only the
// context ends the wait.
func Wait(d time.Duration) Option { return func(o *options) { o.wait = d } }

// And names more keys, which are granted together with the first, or not at all.
func And(keys ...string) Option { return func(o *options) { o.keys = append(o.keys, keys...) } }

// Value is kept with the lock, for others to see: a leader's address.
func Value(value string) Option { return func(o *options) { o.value = value } }

// Shared asks for a lock that any number of readers can hold.
func Shared() Option { return func(o *options) { o.shared = true } }

// Slots makes it a semaphore: n may hold it.
func Slots(n int) Option { return func(o *options) { o.slots = n } }

// Priority asks holders of a lower one to yield.
func Priority(n int) Option { return func(o *options) { o.priority = n } }

// Cleanup is how long the holder may take to finish when it is asked to yield; with 0, which is the default, it
// loses the lock at once.
func Cleanup(d time.Duration) Option { return func(o *options) { o.cleanup = d } }

// Force takes the lock from a holder that was asked to yield, and did not.
func Force() Option { return func(o *options) { o.force = true } }

// AtLeast keeps the key busy for so long after it was acquired, also if it was released.
func AtLeast(d time.Duration) Option { return func(o *options) { o.atLeast = d } }

// Delay keeps the key busy for so long after its holder was lost.
func Delay(d time.Duration) Option { return func(o *options) { o.delay = d } }

// Lazy: past its TTL, the lock ends only when another client wants it.
func Lazy() Option { return func(o *options) { o.lazy = true } }

// MaxHold ends the renewal, so that the lock is not held for longer. Asked tells before.
func MaxHold(d time.Duration) Option { return func(o *options) { o.maxHold = d } }

// NoRenewal leaves the renewal to SetValue.
func NoRenewal() Option { return func(o *options) { o.manual = true } }

func makeOptions(key string, opts []Option) ([]string, *options, error) {
	o := &options{ttl: -1, wait: never, slots: 1, maxHold: never}
	for _, opt := range opts {
		opt(o)
	}
	if o.ttl == -1 {
		o.ttl = max(defaultTTL, o.atLeast)
	}
	if o.ttl < time.Millisecond {
		return nil, nil, fail(ErrInvalid, "the TTL must be positive")
	}
	if min(o.wait, o.cleanup, o.atLeast, o.delay, o.maxHold) < 0 {
		return nil, nil, fail(ErrInvalid, "a time must not be negative")
	}
	if max(o.slots, o.priority) > math.MaxInt32 {
		return nil, nil, fail(ErrInvalid, "a number is too large")
	}
	keys := append([]string{key}, o.keys...)
	for _, key := range keys {
		if key == "" {
			return nil, nil, fail(ErrInvalid, "a key must not be empty")
		}
	}
	return keys, o, nil
}

// Do acquires a lock, calls body, and releases it. The context of body ends, with a cause that is ErrLost, when the
// lock is lost. The error is that of body; if the lock was lost, it is ErrLost, too. An unreachable server at
// the release is not an error: body had the lock, which ends by its TTL if not before.
func (l *Locks) Do(ctx context.Context, key string, body func(ctx context.Context, l *Lock) error, opts ...Option) error {
	lock, err := l.acquire(ctx, ctx, key, opts)
	if err != nil {
		return err
	}
	done := false
	defer func() {
		if !done { // body has panicked
			_ = lock.Release(context.WithoutCancel(ctx))
		}
	}()
	err = body(lock.ctx, lock)
	done = true
	gone := lock.Release(context.WithoutCancel(ctx))
	if !errors.Is(gone, ErrLost) {
		return err
	}
	if err == nil || errors.Is(err, ErrLost) {
		return gone
	}
	return &Error{Kind: ErrLost, Message: err.Error(), Cause: err}
}

// Acquire a lock until it is released. The context is for the request, not for the lock: see Lock.Context.
func (l *Locks) Acquire(ctx context.Context, key string, opts ...Option) (*Lock, error) {
	return l.acquire(ctx, context.WithoutCancel(ctx), key, opts)
}

func (l *Locks) acquire(ctx, base context.Context, key string, opts []Option) (*Lock, error) {
	keys, o, err := makeOptions(key, opts)
	if err != nil {
		return nil, err
	}
	return l.keeper.acquire(ctx, base, keys, o)
}

// Elect leads whenever it is elected: it calls lead with the lock, whose version is the term. After a loss it is a
// candidate again. It ends when lead returns otherwise, or with ctx. The TTL is 10 s if not given.
func (l *Locks) Elect(ctx context.Context, key string, lead func(ctx context.Context, l *Lock) error, opts ...Option) error {
	opts = append([]Option{TTL(electTTL)}, opts...)
	for {
		led := false
		err := l.Do(ctx, key, func(ctx context.Context, lock *Lock) error {
			led = true
			return lead(ctx, lock)
		}, opts...)
		if !led || !errors.Is(err, ErrLost) {
			return err
		}
	}
}

// Leader is who holds a key. Owner and Value of another role's lock may be hidden.
type Leader struct {
	Version      int64
	Owner, Value string
}

// Leader who holds the key now; nil: nobody.
func (l *Locks) Leader(ctx context.Context, key string) (*Leader, error) {
	r, end, err := l.keeper.begin(ctx, 0)
	defer end()
	if err != nil {
		return nil, err
	}
	rows, _, err := r.ask(stmt.Get, key)
	for _, row := range rows {
		switch text(row[3]) {
		case "held", "preempting", "lapsed":
			return &Leader{number(row[0]), text(row[1]), text(row[2])}, nil
		}
	}
	return nil, err
}

// Observe yields the leader now, and after each change of it or of its value. It asks once in every interval, and
// ends with the first error, or with ctx.
func (l *Locks) Observe(ctx context.Context, key string, every time.Duration) iter.Seq2[*Leader, error] {
	return func(yield func(*Leader, error) bool) {
		var last Leader
		for first := true; ; first = false {
			leader, err := l.Leader(ctx, key)
			var it Leader
			if leader != nil {
				it = *leader
			}
			if err != nil || first || it.Version != last.Version || it.Value != last.Value {
				if !yield(leader, err) || err != nil {
					return
				}
			}
			last = it
			select {
			case <-ctx.Done():
				yield(nil, context.Cause(ctx))
				return
			case <-time.After(every):
			}
		}
	}
}

// Limit is a rate limit of n in any window of that length. 0: go ahead; else the time after which to ask again. With
// Wait, it waits for so long; with Priority, those of a lower one go later.
func (l *Locks) Limit(ctx context.Context, key string, n int, per time.Duration, opts ...Option) (time.Duration, error) {
	_, o, err := makeOptions(key, append([]Option{Wait(0)}, opts...))
	if err != nil {
		return 0, err
	}
	r, end, err := l.keeper.begin(ctx, o.wait)
	defer end()
	for err == nil {
		var value *string
		if value, err = r.value(stmt.Limit, key, fmt.Sprint(n), interval(per), fmt.Sprint(o.priority)); err != nil {
			break
		}
		left := millis(value)
		if left <= 0 || after(now(), left) > r.waitUntil {
			return left, nil
		}
		_, err = r.rest(now()+left, nil)
	}
	return 0, err
}

// Lock is a lock that was granted. It is renewed until it is released.
type Lock struct {
	keeper *keeper
	grant  *grant
	ctx    context.Context
	once   sync.Once
	err    error
}

// Key is the (first) key.
func (l *Lock) Key() string { return l.grant.leases[0].key }

// Version is the fencing token of the (first) key: higher than those of all its locks before.
func (l *Lock) Version() int64 { return l.grant.leases[0].version }

// Versions has the fencing tokens of all keys.
func (l *Lock) Versions() map[string]int64 {
	versions := map[string]int64{}
	for _, lease := range l.grant.leases {
		versions[lease.key] = lease.version
	}
	return versions
}

// Context ends when the lock is lost, with a cause that is ErrLost, and when it is released. It has the values of
// the context that the lock was acquired with; in Do, it ends with that, too.
func (l *Lock) Context() context.Context { return l.ctx }

// Held: do we hold it? It looks at the clock, not at the server. A lost lock never comes back.
func (l *Lock) Held() (held bool) {
	l.keeper.with(func() { held = l.grant.isHeld(now()) })
	return held
}

// Err is nil if we hold it, else an ErrLost that says why not.
func (l *Lock) Err() (err error) {
	l.keeper.with(func() {
		if !l.grant.isHeld(now()) {
			err = l.grant.error()
		}
	})
	return err
}

// Asked is closed when the holder is asked to finish, because of a higher priority or of MaxHold. AskedWhy says
// which, and TimeLeft how long it has.
func (l *Lock) Asked() <-chan struct{} { return l.grant.asked }

// AskedWhy is AskedPriority, AskedMaxHold, or empty.
func (l *Lock) AskedWhy() (why string) {
	l.keeper.with(func() { why = l.grant.askedWhy })
	return why
}

// TimeLeft until it must be released if it was asked for, else until it would be lost.
func (l *Lock) TimeLeft() (left time.Duration) {
	l.keeper.with(func() {
		if g, t := l.grant, now(); g.isHeld(t) {
			left = max(min(g.deadline(), g.askedUntil)-t, 0)
		}
	})
	return left
}

// FenceSetting is what to set dlock.fence to in a connection of your own: what it writes is committed only while
// the (first) key is held, in autocommit, too.
func (l *Lock) FenceSetting() string { return fmt.Sprintf("%d:%s", l.Version(), l.Key()) }

// Fenced runs body in a transaction of the pool that begins with the fence: until it ends, nobody can take the
// lock, and if the lock is not ours it fails with ErrLost and writes nothing. Use pgxdlock.Fenced or sqldlock.Fenced,
// which know the type of tx.
func (l *Lock) Fenced(ctx context.Context, body func(tx any) error) error {
	if err := l.Err(); err != nil {
		return err
	}
	server, err := l.keeper.know(ctx)
	if err != nil {
		return err
	}
	err = l.keeper.source.Transaction(ctx, func(tx any, exec Exec) error {
		for _, lease := range l.grant.leases {
			err := exec(server.sql(stmt.Fence), lease.key, fmt.Sprint(lease.version))
			if sqlstate(err) == "LK001" {
				l.keeper.with(func() { lease.gone("not_held") })
			}
			if err != nil {
				return err
			}
		}
		return body(tx)
	})
	if sqlstate(err) == "LK001" { // of this fence, or of another one within the transaction
		return translate(err)
	}
	return err
}

// SetValue replaces the value, which those who observe the key see, and renews the lock.
func (l *Lock) SetValue(ctx context.Context, value string) error {
	r, end, err := l.keeper.begin(ctx, 0)
	defer end()
	for _, lease := range l.grant.leases {
		if err != nil {
			return err
		}
		var rows []Row
		var sentAt time.Duration
		rows, sentAt, err = r.ask(stmt.Refresh, lease.key, fmt.Sprint(lease.version), l.grant.owner, value)
		l.keeper.with(func() {
			switch {
			case err != nil:
			case rows[0][0] == nil:
				lease.gone("not_held")
			case lease.isHeld(now()):
				lease.renewed(sentAt, millis(rows[0][0]))
			}
		})
	}
	if err != nil {
		return err
	}
	return l.Err()
}

// Release the lock. ErrLost: it was not ours any more, so what was done may not have been alone. Once it was
// called, it does nothing and returns the same.
func (l *Lock) Release(ctx context.Context) error {
	l.once.Do(func() { l.err = l.grant.release(ctx) })
	return l.err
}
