// The programs of docs/languages.md.
//
//	programs cron KEY TTL COMMAND...   run a command unless it runs elsewhere
//	programs leader KEY TTL NAME       lead, or wait to lead
//	programs writer KEY TTL            write the lines of standard input, fenced
//
// TTL is in seconds. The server is named by the PG* variables, as for psql.
// Exit status: 75 the lock is busy, 76 it was lost.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"time"

	"dlock.example/pg-dlock"
	"dlock.example/pg-dlock/pgxdlock"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

func cron(ctx context.Context, locks *dlock.Locks, key string, ttl time.Duration, command []string) error {
	return locks.Do(ctx, key, func(ctx context.Context, l *dlock.Lock) error {
		child := exec.CommandContext(ctx, command[0], command[1:]...) // is killed when the lock is lost
		child.Stdout, child.Stderr = os.Stdout, os.Stderr
		return child.Run()
	}, dlock.TTL(ttl), dlock.Wait(0))
}

func leader(ctx context.Context, locks *dlock.Locks, key string, ttl time.Duration, name string) error {
	return locks.Elect(ctx, key, func(ctx context.Context, l *dlock.Lock) error {
		for {
			err := pgxdlock.Fenced(ctx, l, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "INSERT INTO journal VALUES ($1, $2)", l.Version(), name)
				return err
			})
			if err != nil {
				return err
			}
			time.Sleep(ttl / 10)
		}
	}, dlock.TTL(ttl), dlock.Value(name))
}

func writer(ctx context.Context, locks *dlock.Locks, key string, ttl time.Duration) error {
	return locks.Do(ctx, key, func(ctx context.Context, l *dlock.Lock) error {
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			err := pgxdlock.Fenced(ctx, l, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "INSERT INTO journal VALUES ($1, $2)", l.Version(), lines.Text())
				return err
			})
			if err != nil {
				return err
			}
		}
		return lines.Err()
	}, dlock.TTL(ttl), dlock.Wait(10*time.Second))
}

func run(ctx context.Context, args []string) error {
	pool, err := pgxpool.New(ctx, "")
	if err != nil {
		return err
	}
	defer pool.Close()
	locks := pgxdlock.New(pool)
	defer locks.Close()
	if len(args) < 3 {
		return errors.New("usage: programs cron|leader|writer KEY TTL [ARGUMENT]")
	}
	seconds, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	ttl := time.Duration(seconds) * time.Second
	switch args[0] {
	case "cron":
		return cron(ctx, locks, args[1], ttl, args[3:])
	case "leader":
		return leader(ctx, locks, args[1], ttl, args[3])
	default:
		return writer(ctx, locks, args[1], ttl)
	}
}

func main() {
	err := run(context.Background(), os.Args[1:])
	var job *exec.ExitError
	switch {
	case err == nil:
	case errors.Is(err, dlock.ErrLost):
		fmt.Fprintln(os.Stderr, err)
		os.Exit(76)
	case errors.As(err, &job):
		os.Exit(job.ExitCode())
	default:
		fmt.Fprintln(os.Stderr, err)
		if errors.Is(err, dlock.ErrBusy) {
			os.Exit(75)
		}
		os.Exit(1)
	}
}
