package gocrondlock_test

import (
	"context"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"dlock.example/pg-dlock"
	"dlock.example/pg-dlock/dlocktest"
	"dlock.example/pg-dlock/gocrondlock"
	"dlock.example/pg-dlock/pgxdlock"
	"github.com/go-co-op/gocron/v2"
	"github.com/jackc/pgx/v5/pgxpool"
)

const patience = 3 * time.Minute

// each calls test with the fake, and with the server that PGHOST names.  The locks are those of three processes.
func each(t *testing.T, test func(t *testing.T, locks []*dlock.Locks)) {
	t.Run("fake", func(t *testing.T) {
		server := dlocktest.NewServer()
		var locks []*dlock.Locks
		for range 3 {
			locks = append(locks, server.Locks(nil))
			t.Cleanup(locks[len(locks)-1].Close)
		}
		test(t, locks)
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
		test(t, locks)
	})
}

func scheduler(t *testing.T, job func(), option gocron.SchedulerOption) gocron.Scheduler {
	s, err := gocron.NewScheduler(option)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.NewJob(gocron.DurationJob(20*time.Millisecond), gocron.NewTask(job), gocron.WithName("job"),
		gocron.WithSingletonMode(gocron.LimitModeReschedule))
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { _ = s.Shutdown() })
	return s
}

func until(t *testing.T, condition func() bool) {
	t.Helper()
	for began := time.Now(); !condition(); time.Sleep(time.Millisecond) {
		if time.Since(began) > patience {
			t.Fatal("it did not happen")
		}
	}
}

// Three schedulers have the same job, and it never runs twice at the same time.
func TestLocker(t *testing.T) {
	each(t, func(t *testing.T, locks []*dlock.Locks) {
		var running, runs, overlaps atomic.Int32
		for _, l := range locks {
			scheduler(t, func() {
				if running.Add(1) > 1 {
					overlaps.Add(1)
				}
				time.Sleep(5 * time.Millisecond)
				running.Add(-1)
				runs.Add(1)
			}, gocron.WithDistributedLocker(gocrondlock.NewLocker(l)))
		}
		until(t, func() bool { return runs.Load() >= 30 })
		if overlaps.Load() > 0 {
			t.Errorf("it ran twice at the same time, %d times", overlaps.Load())
		}
	})
}

func TestLockerRunsOnceInAtLeast(t *testing.T) {
	each(t, func(t *testing.T, locks []*dlock.Locks) {
		var runs atomic.Int32
		var busy [3]atomic.Int32
		for i, l := range locks {
			locker := gocrondlock.NewLocker(l, dlock.AtLeast(time.Hour))
			scheduler(t, func() { runs.Add(1) }, gocron.WithDistributedLocker(counts{locker, &busy[i]}))
		}
		until(t, func() bool {
			return runs.Load() > 0 && busy[0].Load() > 3 && busy[1].Load() > 3 && busy[2].Load() > 3
		})
		if runs.Load() != 1 {
			t.Errorf("it ran %d times", runs.Load())
		}
	})
}

// counts what was refused.
type counts struct {
	gocron.Locker
	busy *atomic.Int32
}

func (c counts) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	lock, err := c.Locker.Lock(ctx, key+"-once")
	if err != nil {
		c.busy.Add(1)
	}
	return lock, err
}

// Only the leader runs jobs; after it, another one.
func TestElector(t *testing.T) {
	each(t, func(t *testing.T, locks []*dlock.Locks) {
		var runs [3]atomic.Int32
		var electors []*gocrondlock.Elector
		for i, l := range locks {
			e := gocrondlock.NewElector(l, "boss")
			t.Cleanup(e.Close)
			electors = append(electors, e)
			scheduler(t, func() { runs[i].Add(1) }, gocron.WithDistributedElector(e))
		}
		leader := func() int {
			found := -1
			for i, e := range electors {
				if e.IsLeader(t.Context()) == nil {
					if found >= 0 {
						t.Fatal("there are two leaders")
					}
					found = i
				}
			}
			return found
		}
		until(t, func() bool { return leader() >= 0 })
		first := leader()
		until(t, func() bool { return runs[first].Load() >= 5 })
		for i := range runs {
			if i != first && runs[i].Load() > 0 {
				t.Error("who does not lead has run the job")
			}
		}
		electors[first].Close()
		until(t, func() bool { return leader() >= 0 })
		next := leader()
		if next == first {
			t.Error("who has resigned leads")
		}
		until(t, func() bool { return runs[next].Load() >= 5 })
	})
}
