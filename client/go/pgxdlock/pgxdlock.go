// Package pgxdlock has locks on a pool of pgx.
package pgxdlock

import (
	"context"
	"time"

	"dlock.example/pg-dlock"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// New has all locks of a program. Short statements use the pool, and the renewal one more connection with the
// settings of the pool.
func New(pool *pgxpool.Pool, opts ...dlock.LocksOption) *dlock.Locks {
	return dlock.New(source{pool}, opts...)
}

// Fenced runs body in a transaction of the pool that begins with the fence: until it ends, nobody can take the
// lock, and if the lock is not ours it fails with dlock.ErrLost and writes nothing.
func Fenced(ctx context.Context, l *dlock.Lock, body func(tx pgx.Tx) error) error {
	return l.Fenced(ctx, func(tx any) error {
		tx1, _ := tx.(pgx.Tx) // nil of a fake that has none
		return body(tx1)
	})
}

// Connect makes the connection for the renewal of a sqldlock on pgx's driver for database/sql. A role that a hook of
// your pool sets belongs into config.RuntimeParams.
func Connect(config *pgx.ConnConfig) dlock.Connect {
	return func(ctx context.Context) (dlock.Conn, error) {
		config := config.Copy()
		config.OnNotification = nil // they are for Wait
		if config.DefaultQueryExecMode != pgx.QueryExecModeSimpleProtocol {
			config.DefaultQueryExecMode = pgx.QueryExecModeExec // there may be a pooler
		}
		if config.RuntimeParams["application_name"] == "" {
			config.RuntimeParams["application_name"] = "dlock"
		}
		c, err := pgx.ConnectConfig(ctx, config)
		if err != nil {
			return nil, err
		}
		return conn{c}, nil
	}
}

type source struct{ pool *pgxpool.Pool }

func (s source) Borrow(ctx context.Context) (dlock.Conn, error) {
	c, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	return &borrowed{conn{c.Conn()}, c}, nil
}

func (s source) Open(ctx context.Context) (dlock.Conn, error) {
	config := s.pool.Config()
	if config.BeforeConnect != nil { // which may set a password
		if err := config.BeforeConnect(ctx, config.ConnConfig); err != nil {
			return nil, err
		}
	}
	c, err := Connect(config.ConnConfig)(ctx)
	if err != nil || config.AfterConnect == nil {
		return c, err
	}
	if err := config.AfterConnect(ctx, c.(conn).Conn); err != nil { // which may set a role
		c.Close(true)
		return nil, err
	}
	return c, nil
}

func (s source) Transaction(ctx context.Context, body func(tx any, exec dlock.Exec) error) error {
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		return body(tx, func(sql string, args ...any) error {
			_, err := tx.Exec(ctx, sql, args...)
			return err
		})
	})
}

type conn struct{ *pgx.Conn }

func (c conn) Query(ctx context.Context, sql string, args ...any) ([]dlock.Row, error) {
	rows, err := c.Conn.Query(ctx, sql, append([]any{pgx.QueryResultFormats{pgx.TextFormatCode}}, args...)...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []dlock.Row
	for rows.Next() {
		row := make(dlock.Row, len(rows.RawValues()))
		for i, raw := range rows.RawValues() {
			if raw != nil {
				text := string(raw)
				row[i] = &text
			}
		}
		all = append(all, row)
	}
	return all, rows.Err()
}

func (c conn) PID() uint32 { return c.PgConn().PID() }

func (c conn) Wait(ctx context.Context) (string, error) {
	n, err := c.WaitForNotification(ctx)
	if err != nil {
		return "", err
	}
	return n.Payload, nil
}

func (c conn) Close(broken bool) {
	timeout := time.Second
	if broken {
		timeout = 0
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	_ = c.Conn.Close(ctx)
}

type borrowed struct {
	conn
	c *pgxpool.Conn
}

func (b *borrowed) Close(broken bool) {
	if broken {
		b.conn.Close(true)
	}
	b.c.Release() // the pool drops it if it is closed
}
