package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"dlock.example/pg-dlock"
	"dlock.example/pg-dlock/dlocktest"
)

// What takes longer has failed.
const patience = time.Minute

func background(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func newLocks(t *testing.T, server *dlocktest.Server, opts ...dlock.LocksOption) *dlock.Locks {
	locks := server.Locks(nil, opts...)
	t.Cleanup(locks.Close)
	return locks
}

func acquire(t *testing.T, locks *dlock.Locks, key string, opts ...dlock.Option) *dlock.Lock {
	t.Helper()
	lock, err := locks.Acquire(background(t), key, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return lock
}

func is(t *testing.T, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("the error is %v, not %v", err, kind)
	}
}

func await(t *testing.T, done <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("it did not happen: %s", what)
	}
}

func TestDoReleases(t *testing.T) {
	ctx, server := background(t), dlocktest.NewServer()
	a, b := newLocks(t, server), newLocks(t, server)
	var kept *dlock.Lock
	err := a.Do(ctx, "key", func(ctx context.Context, l *dlock.Lock) error {
		kept = l
		if !l.Held() || l.Version() == 0 || ctx.Err() != nil {
			t.Error("it is not held")
		}
		_, err := b.Acquire(ctx, "key", dlock.Wait(0))
		is(t, err, dlock.ErrBusy)
		return nil
	})
	is(t, err, nil)
	if kept.Held() || kept.Context().Err() == nil {
		t.Error("it is held after Do")
	}
	is(t, b.Do(ctx, "key", func(context.Context, *dlock.Lock) error { return nil }, dlock.Wait(0)), nil)
}

func TestDoHasTheErrorOfItsBody(t *testing.T) {
	ctx, server := background(t), dlocktest.NewServer()
	locks, mine := newLocks(t, server), errors.New("mine")
	if err := locks.Do(ctx, "key", func(context.Context, *dlock.Lock) error { return mine }); err != mine {
		t.Error(err)
	}
	err := locks.Do(ctx, "key", func(ctx context.Context, l *dlock.Lock) error {
		server.Take("key")
		<-ctx.Done()
		is(t, context.Cause(ctx), dlock.ErrLost)
		return mine
	})
	is(t, err, dlock.ErrLost)
	is(t, err, mine)
	err = locks.Do(ctx, "key", func(ctx context.Context, l *dlock.Lock) error {
		server.Take("key")
		return nil
	})
	is(t, err, dlock.ErrLost)
}

func TestDoReleasesAfterAPanic(t *testing.T) {
	locks := newLocks(t, dlocktest.NewServer())
	func() {
		defer func() { _ = recover() }()
		_ = locks.Do(background(t), "key", func(context.Context, *dlock.Lock) error { panic("mine") })
	}()
	acquire(t, locks, "key", dlock.Wait(0))
}

func TestContexts(t *testing.T) {
	server := dlocktest.NewServer()
	locks := newLocks(t, server)
	type name struct{}
	ctx, cancel := context.WithCancel(context.WithValue(background(t), name{}, "value"))
	lock, err := locks.Acquire(ctx, "acquired")
	is(t, err, nil)
	err = locks.Do(ctx, "done", func(ctx context.Context, l *dlock.Lock) error {
		cancel()
		<-ctx.Done() // the context of Do
		return ctx.Err()
	})
	is(t, err, context.Canceled)
	if lock.Context().Err() != nil || lock.Context().Value(name{}) != "value" {
		t.Error("the context of Acquire is for the request only, but for its values")
	}
	server.Hold("busy")
	ctx, cancel = context.WithTimeout(background(t), time.Millisecond)
	defer cancel()
	_, err = locks.Acquire(ctx, "busy")
	is(t, err, context.DeadlineExceeded)
}

func TestKinds(t *testing.T) {
	ctx, server := background(t), dlocktest.NewServer()
	locks := newLocks(t, server)
	busy := func(key string, opts ...dlock.Option) {
		t.Helper()
		_, err := locks.Acquire(ctx, key, append(opts, dlock.Wait(0))...)
		is(t, err, dlock.ErrBusy)
	}
	acquire(t, locks, "book", dlock.Shared())
	acquire(t, locks, "book", dlock.Shared())
	busy("book")
	acquire(t, locks, "places", dlock.Slots(2))
	acquire(t, locks, "places", dlock.Slots(2))
	busy("places", dlock.Slots(2))
	both := acquire(t, locks, "one", dlock.And("two"))
	if v := both.Versions(); len(v) != 2 || v["one"] == 0 || v["one"] == v["two"] {
		t.Error(v)
	}
	busy("two")
	is(t, both.Release(ctx), nil)
	is(t, both.Release(ctx), nil)
	cooling := acquire(t, locks, "two", dlock.AtLeast(time.Hour))
	is(t, cooling.Release(ctx), nil)
	busy("two")
	busy("one", dlock.And("two"))
	acquire(t, locks, "one")
}

func TestRenewedThenLost(t *testing.T) {
	server := dlocktest.NewServer()
	var mu sync.Mutex
	var kinds []dlock.EventKind
	renewed := make(chan struct{}, 1000)
	locks := newLocks(t, server, dlock.OnEvent(func(e dlock.Event) {
		mu.Lock()
		defer mu.Unlock()
		if e.Kind != dlock.Danger && !slices.Contains(kinds, e.Kind) {
			kinds = append(kinds, e.Kind)
		}
		if e.Kind == dlock.Renewed {
			renewed <- struct{}{}
		}
	}))
	lock := acquire(t, locks, "key", dlock.TTL(4*time.Second))
	for range 4 {
		await(t, renewed, "a renewal")
	}
	if !lock.Held() || lock.TimeLeft() <= 0 {
		t.Error("it is not held")
	}
	server.AskToYield("key")
	await(t, lock.Asked(), "being asked")
	if lock.AskedWhy() != dlock.AskedPriority || !lock.Held() || lock.TimeLeft() > time.Second {
		t.Error(lock.AskedWhy(), lock.TimeLeft())
	}
	server.Hold("key")
	await(t, lock.Context().Done(), "the loss")
	is(t, context.Cause(lock.Context()), dlock.ErrLost)
	is(t, lock.Err(), dlock.ErrLost)
	is(t, lock.Release(background(t)), dlock.ErrLost)
	server.Take("key")
	if lock.Held() {
		t.Error("a lost lock has come back")
	}
	mu.Lock()
	defer mu.Unlock()
	if said := fmt.Sprint(kinds); said != "[granted renewed asked lost]" {
		t.Error(said)
	}
}

func TestMaxHold(t *testing.T) {
	locks := newLocks(t, dlocktest.NewServer())
	lock := acquire(t, locks, "key", dlock.TTL(2*time.Second), dlock.MaxHold(3*time.Second))
	await(t, lock.Asked(), "being asked")
	if lock.AskedWhy() != dlock.AskedMaxHold {
		t.Error(lock.AskedWhy())
	}
	await(t, lock.Context().Done(), "the loss")
}

func TestCloseTells(t *testing.T) {
	server := dlocktest.NewServer()
	locks := newLocks(t, server)
	lock := acquire(t, locks, "key")
	locks.Close()
	is(t, context.Cause(lock.Context()), dlock.ErrLost)
	_, err := locks.Acquire(background(t), "other")
	is(t, err, dlock.ErrClosed)
	_, err = newLocks(t, server).Acquire(background(t), "key", dlock.Wait(0))
	is(t, err, dlock.ErrBusy)
}

func TestFenced(t *testing.T) {
	ctx, server := background(t), dlocktest.NewServer()
	locks := server.Locks("a mock")
	defer locks.Close()
	lock := acquire(t, locks, "key")
	if want := fmt.Sprintf("%d:key", lock.Version()); lock.FenceSetting() != want {
		t.Error(lock.FenceSetting())
	}
	is(t, lock.Fenced(ctx, func(tx any) error {
		if tx != "a mock" {
			t.Error(tx)
		}
		return nil
	}), nil)
	server.Take("key")
	is(t, lock.Fenced(ctx, func(any) error { t.Error("it is not fenced"); return nil }), dlock.ErrLost)
	if lock.Held() {
		t.Error("it is still held")
	}
}

func TestElection(t *testing.T) {
	ctx, server := background(t), dlocktest.NewServer()
	locks := newLocks(t, server)
	if leader, err := locks.Leader(ctx, "boss"); leader != nil || err != nil {
		t.Fatal(leader, err)
	}
	finished := make(chan error)
	end := errors.New("the end")
	go func() {
		n := 0
		finished <- locks.Elect(ctx, "boss", func(ctx context.Context, l *dlock.Lock) error {
			if n++; n == 3 {
				return end
			}
			for ctx.Err() == nil {
				_ = l.SetValue(ctx, "me")
			}
			return ctx.Err()
		}, dlock.Value("me"))
	}()
	var versions []int64
	for who, err := range locks.Observe(ctx, "boss", time.Millisecond) {
		is(t, err, nil)
		if who == nil {
			continue
		}
		if versions = append(versions, who.Version); who.Value != "me" {
			t.Error(who)
		}
		if len(versions) == 2 {
			break
		}
		server.Take("boss")
	}
	server.Take("boss")
	if err := <-finished; err != end {
		t.Error(err)
	}
	if versions[1] <= versions[0] {
		t.Error(versions)
	}
}

func TestNoRenewal(t *testing.T) {
	locks := newLocks(t, dlocktest.NewServer(), dlock.OnEvent(func(e dlock.Event) {
		if e.Kind == dlock.Renewed {
			t.Error("it was renewed")
		}
	}))
	lock := acquire(t, locks, "key", dlock.TTL(2*time.Second), dlock.NoRenewal())
	is(t, lock.SetValue(background(t), "value"), nil)
	await(t, lock.Context().Done(), "the loss")
}

func TestLimit(t *testing.T) {
	ctx, locks := background(t), newLocks(t, dlocktest.NewServer())
	for range 2 {
		if left, err := locks.Limit(ctx, "mail", 2, time.Hour); left != 0 || err != nil {
			t.Fatal(left, err)
		}
	}
	if left, err := locks.Limit(ctx, "mail", 2, time.Hour); left <= 0 || left > time.Hour || err != nil {
		t.Error(left, err)
	}
	for range 3 {
		if left, err := locks.Limit(ctx, "fast", 1, time.Millisecond, dlock.Wait(patience)); left != 0 || err != nil {
			t.Error(left, err)
		}
	}
}

func TestArguments(t *testing.T) {
	locks := newLocks(t, dlocktest.NewServer())
	for _, opt := range []dlock.Option{dlock.TTL(0), dlock.Wait(-1), dlock.Cleanup(-1), dlock.Delay(-1), dlock.AtLeast(-1),
		dlock.MaxHold(-1), dlock.And(""), dlock.Slots(1 << 40)} {
		_, err := locks.Acquire(background(t), "key", opt)
		is(t, err, dlock.ErrInvalid)
	}
}

// lateServer grants for less than its answers take.
type lateServer struct{}

func (lateServer) Borrow(context.Context) (dlock.Conn, error) { return lateServer{}, nil }
func (lateServer) Open(context.Context) (dlock.Conn, error)   { return lateServer{}, nil }
func (lateServer) PID() uint32                                { return 0 }
func (lateServer) Close(bool)                                 {}

func (lateServer) Transaction(context.Context, func(any, dlock.Exec) error) error { return nil }

func (lateServer) Wait(ctx context.Context) (string, error) {
	<-ctx.Done()
	return "", ctx.Err()
}

func (lateServer) Query(_ context.Context, sql string, _ ...any) ([]dlock.Row, error) {
	said := func(values ...string) []dlock.Row {
		row := dlock.Row{}
		for _, value := range values {
			row = append(row, &value)
		}
		return []dlock.Row{row}
	}
	switch {
	case strings.Contains(sql, "pg_backend_pid"):
		return said("1", "public"), nil
	case strings.Contains(sql, "dlock_features"):
		return said("c", "1.0", "{tickets}"), nil
	case strings.Contains(sql, "dlock_acquire"):
		time.Sleep(2 * time.Millisecond)
		return said("7"), nil
	case strings.Contains(sql, "dlock_refresh"):
		return []dlock.Row{{nil}}, nil
	}
	return said("released"), nil
}

func TestTTLShorterThanAnAnswer(t *testing.T) {
	locks := dlock.New(lateServer{}, dlock.Timeout(50*time.Millisecond))
	t.Cleanup(locks.Close)
	_, err := locks.Acquire(background(t), "key", dlock.TTL(time.Millisecond))
	is(t, err, dlock.ErrUnreachable)
}
