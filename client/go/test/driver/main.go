// The driver of the conformance suite; test/conformance/README.md says what it does. Its argument is the adapter:
// go_pgx or go_sql.
package main

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"dlock.example/pg-dlock"
	"dlock.example/pg-dlock/pgxdlock"
	"dlock.example/pg-dlock/sqldlock"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
)

type command struct {
	ID                                   int64
	Do, Client, Lock, Key                string
	Keys                                 []string
	Wait                                 int64
	TTL, Slots, Priority, Cleanup, Delay *int64
	AtLeast                              *int64 `json:"at_least"`
	MaxHold                              *int64 `json:"max_hold"`
	Shared, Force                        bool
	Value                                *string
	SQL                                  string
	N                                    int
	Per                                  int64
	Host, Dbname, User                   string
	Port, Timeout, Pool                  int64
}

type answer map[string]any

type client struct {
	locks  *dlock.Locks
	end    func()
	fenced func(ctx context.Context, l *dlock.Lock, text string) error
	mu     sync.Mutex
	held   map[string]*dlock.Lock
	names  map[int64]string // of locks, by version
}

var (
	ctx     = context.Background()
	saying  sync.Mutex
	mu      sync.Mutex
	clients = map[string]*client{}
)

func say(what answer) {
	saying.Lock()
	defer saying.Unlock()
	if err := json.NewEncoder(os.Stdout).Encode(what); err != nil {
		panic(err)
	}
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

func open(c command) (answer, error) {
	made := &client{held: map[string]*dlock.Lock{}, names: map[int64]string{}}
	opts := []dlock.LocksOption{dlock.Timeout(ms(c.Timeout)), dlock.OnEvent(func(e dlock.Event) {
		if e.Kind != dlock.Lost && e.Kind != dlock.Asked {
			return
		}
		made.mu.Lock()
		name, known := made.names[e.Version]
		made.mu.Unlock()
		if known {
			say(answer{"event": e.Kind, "client": c.Client, "lock": name, "reason": e.Reason,
				"left": e.Duration.Milliseconds(), "at": time.Now().UnixMilli()})
		}
	})}
	dsn := fmt.Sprintf("host=%s port=%d dbname=%s user=%s sslmode=disable pool_max_conns=%d", c.Host, c.Port, c.Dbname, c.User, c.Pool)
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // for PgBouncer
	if len(os.Args) > 1 && os.Args[1] == "go_sql" {
		db := stdlib.OpenDB(*config.ConnConfig)
		db.SetMaxOpenConns(int(c.Pool))
		made.locks = sqldlock.New(db, pgxdlock.Connect(config.ConnConfig), opts...)
		made.end = func() { _ = db.Close() }
		made.fenced = func(ctx context.Context, l *dlock.Lock, text string) error {
			return sqldlock.Fenced(ctx, l, func(tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, text)
				return err
			})
		}
	} else {
		pool, err := pgxpool.NewWithConfig(ctx, config)
		if err != nil {
			return nil, err
		}
		made.locks, made.end = pgxdlock.New(pool, opts...), pool.Close
		made.fenced = func(ctx context.Context, l *dlock.Lock, text string) error {
			return pgxdlock.Fenced(ctx, l, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, text)
				return err
			})
		}
	}
	mu.Lock()
	defer mu.Unlock()
	clients[c.Client] = made
	return answer{"result": "ok"}, nil
}

func (c *client) acquire(from command) (answer, error) {
	var opts []dlock.Option
	duration := func(n *int64, opt func(time.Duration) dlock.Option) {
		if n != nil {
			opts = append(opts, opt(ms(*n)))
		}
	}
	duration(from.TTL, dlock.TTL)
	duration(from.Cleanup, dlock.Cleanup)
	duration(from.AtLeast, dlock.AtLeast)
	duration(from.Delay, dlock.Delay)
	duration(from.MaxHold, dlock.MaxHold)
	if from.Wait >= 0 {
		opts = append(opts, dlock.Wait(ms(from.Wait)))
	}
	if from.Slots != nil {
		opts = append(opts, dlock.Slots(int(*from.Slots)))
	}
	if from.Priority != nil {
		opts = append(opts, dlock.Priority(int(*from.Priority)))
	}
	if from.Value != nil {
		opts = append(opts, dlock.Value(*from.Value))
	}
	if from.Shared {
		opts = append(opts, dlock.Shared())
	}
	if from.Force {
		opts = append(opts, dlock.Force())
	}
	lock, err := c.locks.Acquire(ctx, from.Keys[0], append(opts, dlock.And(from.Keys[1:]...))...)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held[from.Lock] = lock
	c.names[lock.Version()] = from.Lock
	var versions []int64
	for _, key := range from.Keys {
		versions = append(versions, lock.Versions()[key])
	}
	return answer{"result": "granted", "versions": versions}, nil
}

func obey(from command) (answer, error) {
	if from.Do == "open" {
		return open(from)
	}
	mu.Lock()
	c := clients[from.Client]
	mu.Unlock()
	if c == nil {
		return nil, fmt.Errorf("there is no client %s", from.Client)
	}
	c.mu.Lock()
	lock := c.held[from.Lock]
	c.mu.Unlock()
	switch from.Do {
	case "acquire":
		return c.acquire(from)
	case "limit":
		left, err := c.locks.Limit(ctx, from.Key, from.N, ms(from.Per), dlock.Wait(ms(from.Wait)))
		return answer{"result": "ok", "left": left.Milliseconds()}, err
	case "close":
		c.locks.Close()
		c.end()
		return answer{"result": "ok"}, nil
	}
	if lock == nil {
		return nil, fmt.Errorf("there is no lock %s", from.Lock)
	}
	switch from.Do {
	case "release":
		return answer{"result": "released"}, lock.Release(ctx)
	case "state":
		if lock.Held() {
			return answer{"result": "held"}, nil
		}
		return answer{"result": "not_held"}, nil
	case "fenced":
		return answer{"result": "ok"}, c.fenced(ctx, lock, from.SQL)
	}
	return nil, fmt.Errorf("what is %s?", from.Do)
}

var results = map[error]string{
	dlock.ErrBusy: "busy", dlock.ErrLost: "lost", dlock.ErrRefused: "refused", dlock.ErrDeadlock: "deadlock",
	dlock.ErrDenied: "denied", dlock.ErrInvalid: "invalid", dlock.ErrClosed: "invalid", dlock.ErrNotReady: "not_ready",
	dlock.ErrUnreachable: "unreachable",
}

func resultOf(err error) answer {
	said := answer{"result": "error", "message": err.Error()}
	var e *dlock.Error
	if errors.As(err, &e) {
		if e.Code != "" {
			said["sqlstate"] = e.Code
		}
		if result := results[e.Kind]; result != "" {
			said["result"] = result
		}
	}
	return said
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var from command
		if err := json.Unmarshal(lines.Bytes(), &from); err != nil {
			panic(err)
		}
		go func() {
			said, err := obey(from)
			if err != nil {
				said = resultOf(err)
			}
			said["id"] = from.ID
			say(said)
		}()
	}
}
