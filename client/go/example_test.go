package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"dlock.example/pg-dlock"
	"dlock.example/pg-dlock/dlocktest"
	"dlock.example/pg-dlock/pgxdlock"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A job that writes while it holds a lock, and never after it has lost it.
func Example() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "dbname=app")
	if err != nil {
		panic(err)
	}
	defer pool.Close()
	locks := pgxdlock.New(pool) // one for the program
	defer locks.Close()

	err = locks.Do(ctx, "nightly", func(ctx context.Context, l *dlock.Lock) error {
		return pgxdlock.Fenced(ctx, l, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "INSERT INTO journal VALUES ($1, $2)", l.Version(), "done")
			return err
		})
	}, dlock.TTL(30*time.Second), dlock.Wait(time.Minute))
	if errors.Is(err, dlock.ErrBusy) {
		fmt.Println("another process does it")
	}
}

// A unit test with the fake.
func ExampleLocks_Do() {
	server := dlocktest.NewServer()
	locks := server.Locks(nil)
	defer locks.Close()

	err := locks.Do(context.Background(), "nightly", func(ctx context.Context, l *dlock.Lock) error {
		server.Take("nightly")
		<-ctx.Done()
		return context.Cause(ctx)
	})
	fmt.Println(errors.Is(err, dlock.ErrLost))
	// Output: true
}
