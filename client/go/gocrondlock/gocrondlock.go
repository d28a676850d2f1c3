// Package gocrondlock has a Locker and an Elector for gocron.
package gocrondlock

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"dlock.example/pg-dlock"
	"github.com/go-co-op/gocron/v2"
)

// NewLocker runs each job on one of all schedulers: gocron.WithDistributedLocker. The key is the name of the job.
// With dlock.AtLeast, a job is not run again by a scheduler whose clock is late. A job is not interrupted if its lock
// is lost.
func NewLocker(locks *dlock.Locks, opts ...dlock.Option) gocron.Locker {
	return locker{locks, append([]dlock.Option{dlock.Wait(0)}, opts...)}
}

type locker struct {
	locks *dlock.Locks
	opts  []dlock.Option
}

func (l locker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	lock, err := l.locks.Acquire(ctx, key, l.opts...)
	if err != nil {
		return nil, err
	}
	return unlocker{lock}, nil
}

type unlocker struct{ lock *dlock.Lock }

// Unlock at the end of a scheduler, too, whose context is over.
func (u unlocker) Unlock(ctx context.Context) error {
	return u.lock.Release(context.WithoutCancel(ctx))
}

// Elector lets the scheduler that leads run all jobs: gocron.WithDistributedElector.
type Elector struct {
	term   atomic.Pointer[dlock.Lock]
	cancel context.CancelFunc
	ended  sync.WaitGroup
}

var _ gocron.Elector = (*Elector)(nil)

var errNotLeader = errors.New("gocrondlock: another scheduler leads")

// NewElector is a candidate from now on, until Close.
func NewElector(locks *dlock.Locks, key string, opts ...dlock.Option) *Elector {
	e := &Elector{}
	var ctx context.Context
	ctx, e.cancel = context.WithCancel(context.Background())
	e.ended.Go(func() {
		for ctx.Err() == nil {
			_ = locks.Elect(ctx, key, func(ctx context.Context, l *dlock.Lock) error {
				e.term.Store(l)
				<-ctx.Done()
				return context.Cause(ctx)
			}, opts...)
			select { // the server has refused it, or was not there
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	})
	return e
}

// IsLeader is what gocron asks before each job.
func (e *Elector) IsLeader(context.Context) error {
	if term := e.term.Load(); term != nil && term.Held() {
		return nil
	}
	return errNotLeader
}

// Close releases the leadership.
func (e *Elector) Close() {
	e.cancel()
	e.ended.Wait()
}
