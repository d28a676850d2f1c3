// Package k8sdlock lets the leader election of client-go run on dlock, without Kubernetes.
package k8sdlock

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"dlock.example/pg-dlock"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Lock is a resourcelock.Interface: the Lock of a LeaderElectionConfig. The record is the value of the lock, and the
// lease duration is its TTL. It is renewed by the elector, and by nothing else.
type Lock struct {
	locks         *dlock.Locks
	key, identity string
	opts          []dlock.Option

	mu   sync.Mutex
	term *dlock.Lock // of this candidate, from its Create to the end of its leading
}

var _ resourcelock.Interface = (*Lock)(nil)

// New lock of a candidate. Options say how a lock ends: dlock.Delay, for example.
func New(locks *dlock.Locks, key, identity string, opts ...dlock.Option) *Lock {
	return &Lock{locks: locks, key: key, identity: identity, opts: opts}
}

// Term is the lock of this candidate while it leads, for its fence; else nil. Its context ends as soon as it is lost,
// and the elector may notice only at its RenewDeadline.
func (l *Lock) Term() *dlock.Lock {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.term
}

func (l *Lock) setTerm(term *dlock.Lock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.term = term
}

// Get returns the record of the leader.
func (l *Lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	leader, err := l.locks.Leader(ctx, l.key)
	if err != nil {
		return nil, nil, err
	}
	if leader == nil {
		return nil, nil, apierrors.NewNotFound(schema.GroupResource{Resource: "dlock"}, l.key)
	}
	var record resourcelock.LeaderElectionRecord
	if err := json.Unmarshal([]byte(leader.Value), &record); err != nil {
		return nil, nil, fmt.Errorf("the holder of lock %q has no record: %w", l.key, err)
	}
	return &record, []byte(leader.Value), nil
}

// Create acquires the lock, if it is free.
func (l *Lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if l.Term() != nil { // a term that was lost does not continue
		return l.Update(ctx, record)
	}
	value, err := json.Marshal(record)
	if err != nil {
		return err
	}
	opts := append([]dlock.Option{dlock.Value(string(value)), dlock.NoRenewal(), dlock.Wait(0),
		dlock.TTL(time.Duration(record.LeaseDurationSeconds) * time.Second)}, l.opts...)
	term, err := l.locks.Acquire(ctx, l.key, opts...)
	if err == nil {
		l.setTerm(term)
	}
	return err
}

// Update renews the lock, or releases it if the record has no holder.
func (l *Lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	term := l.Term()
	if term == nil {
		return l.Create(ctx, record)
	}
	if record.HolderIdentity == "" {
		return term.Release(ctx)
	}
	value, err := json.Marshal(record)
	if err != nil {
		return err
	}
	return term.SetValue(ctx, string(value))
}

// RecordEvent is told that the elector stopped leading. Then it may be a candidate again.
func (l *Lock) RecordEvent(event string) {
	if event == "stopped leading" {
		l.setTerm(nil)
	}
}

// Identity of this candidate.
func (l *Lock) Identity() string { return l.identity }

// Describe is for the elector's log.
func (l *Lock) Describe() string { return "dlock/" + l.key }
