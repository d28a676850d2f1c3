package k8sdlock_test

import (
	"context"
	"os"
	"testing"
	"time"

	"dlock.example/pg-dlock"
	"dlock.example/pg-dlock/dlocktest"
	"dlock.example/pg-dlock/k8sdlock"
	"dlock.example/pg-dlock/pgxdlock"
	"github.com/jackc/pgx/v5/pgxpool"
	"k8s.io/client-go/tools/leaderelection"
)

const patience = 3 * time.Minute

// A candidate of client-go's election.
type candidate struct {
	lock             *k8sdlock.Lock
	elector          *leaderelection.LeaderElector
	cancel           func()
	started, stopped chan struct{}
}

func run(t *testing.T, locks *dlock.Locks, identity string, release bool) *candidate {
	c := &candidate{lock: k8sdlock.New(locks, "boss", identity), started: make(chan struct{}, 1), stopped: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	var err error
	c.elector, err = leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: c.lock, LeaseDuration: 6 * time.Second, RenewDeadline: 4 * time.Second, RetryPeriod: time.Second,
		ReleaseOnCancel: release,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { c.started <- struct{}{} },
			OnStoppedLeading: func() { close(c.stopped) },
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	go c.elector.Run(ctx)
	c.cancel = func() { cancel(); await(t, c.stopped, "the end of "+identity) }
	t.Cleanup(c.cancel)
	return c
}

func await(t *testing.T, done <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("it did not happen: %s", what)
	}
}

// each calls test with the fake, and with the server that PGHOST names.  The locks are those of three processes.
func each(t *testing.T, test func(t *testing.T, locks []*dlock.Locks, take func())) {
	t.Run("fake", func(t *testing.T) {
		server := dlocktest.NewServer()
		var locks []*dlock.Locks
		for range 3 {
			locks = append(locks, server.Locks(nil))
			t.Cleanup(locks[len(locks)-1].Close)
		}
		test(t, locks, func() { server.Take("boss") })
	})
	t.Run("server", func(t *testing.T) {
		if os.Getenv("PGHOST") == "" {
			t.Skip("PGHOST names no server")
		}
		pool, err := pgxpool.New(context.Background(), "sslmode=disable")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		var locks []*dlock.Locks
		for range 3 {
			locks = append(locks, pgxdlock.New(pool))
			t.Cleanup(locks[len(locks)-1].Close)
		}
		test(t, locks, func() {
			if _, err := pool.Exec(context.Background(), "SELECT dlock_force_release('boss', 'test')"); err != nil {
				t.Fatal(err)
			}
		})
	})
}

func TestElection(t *testing.T) {
	each(t, func(t *testing.T, locks []*dlock.Locks, _ func()) {
		first := run(t, locks[0], "first", true)
		await(t, first.started, "the first leads")
		term := first.lock.Term()
		second := run(t, locks[1], "second", false)
		for second.elector.GetLeader() != "first" {
			time.Sleep(10 * time.Millisecond)
		}
		// it is renewed by the elector, for longer than its lease
		for began := time.Now(); time.Since(began) < 7*time.Second; time.Sleep(10 * time.Millisecond) {
			if !term.Held() || len(second.started) > 0 {
				t.Fatal("the lease was not renewed")
			}
		}
		first.cancel()
		await(t, second.started, "the second leads after a release")
		if next := second.lock.Term(); next.Version() <= term.Version() || term.Held() {
			t.Error("the second term is not a later one")
		}
		second.cancel() // without a release: its lease must end
		third := run(t, locks[2], "third", true)
		await(t, third.started, "the third leads after the end of the lease")
	})
}

// A leader whose lock is taken away stops leading, also if the lock is free again at once.
func TestLost(t *testing.T) {
	each(t, func(t *testing.T, locks []*dlock.Locks, take func()) {
		first := run(t, locks[0], "first", true)
		await(t, first.started, "the first leads")
		term := first.lock.Term()
		take()
		await(t, first.stopped, "the first stops")
		if term.Held() || first.lock.Term() != nil {
			t.Error("it has its term still")
		}
		second := run(t, locks[1], "second", true)
		await(t, second.started, "the second leads")
		if second.lock.Term().Version() <= term.Version() {
			t.Error("the second term is not a later one")
		}
	})
}
