// Package sqldlock has locks on a pool of database/sql, with any driver for PostgreSQL.
package sqldlock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"

	"dlock.example/pg-dlock"
)

// New has all locks of a program. Short statements use the pool, and the renewal one more connection: that of
// Connect(own), or, with pgx's driver for database/sql, of pgxdlock.Connect(config), which has notifications, too.
func New(db *sql.DB, connect dlock.Connect, opts ...dlock.LocksOption) *dlock.Locks {
	return dlock.New(source{db, connect}, opts...)
}

// Connect takes the connection of the renewal from a pool that is for nothing else: sql.Open it as yours. It has no
// notifications, so requests that wait are asked about four times per second, and a lock that is taken away, or
// asked for, is noticed by its next renewal.
func Connect(own *sql.DB) dlock.Connect {
	return func(ctx context.Context) (dlock.Conn, error) { return borrow(ctx, own, true) }
}

// Fenced runs body in a transaction of the pool that begins with the fence: until it ends, nobody can take the
// lock, and if the lock is not ours it fails with dlock.ErrLost and writes nothing.
func Fenced(ctx context.Context, l *dlock.Lock, body func(tx *sql.Tx) error) error {
	return l.Fenced(ctx, func(tx any) error {
		tx1, _ := tx.(*sql.Tx) // nil of a fake that has none
		return body(tx1)
	})
}

type source struct {
	db      *sql.DB
	connect dlock.Connect
}

func (s source) Borrow(ctx context.Context) (dlock.Conn, error) { return borrow(ctx, s.db, false) }
func (s source) Open(ctx context.Context) (dlock.Conn, error)   { return s.connect(ctx) }

func (s source) Transaction(ctx context.Context, body func(tx any, exec dlock.Exec) error) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // which does nothing after the commit
	err = body(tx, func(sql string, args ...any) error {
		_, err := tx.ExecContext(ctx, sql, args...)
		return err
	})
	if err != nil {
		return err
	}
	return tx.Commit()
}

type conn struct {
	*sql.Conn
	own bool
}

func borrow(ctx context.Context, db *sql.DB, own bool) (dlock.Conn, error) {
	c, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	return conn{c, own}, nil
}

func (c conn) Query(ctx context.Context, query string, args ...any) ([]dlock.Row, error) {
	rows, err := c.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	columns, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	var all []dlock.Row
	for rows.Next() {
		row := make(dlock.Row, len(columns))
		to := make([]any, len(columns))
		for i := range row {
			to[i] = &row[i]
		}
		if err := rows.Scan(to...); err != nil {
			return nil, err
		}
		all = append(all, row)
	}
	return all, rows.Err()
}

func (conn) PID() uint32 { return 0 }

func (conn) Wait(context.Context) (string, error) {
	return "", errors.New("database/sql has no notifications")
}

func (c conn) Close(broken bool) {
	if broken || c.own {
		_ = c.Raw(func(any) error { return driver.ErrBadConn }) // so the pool drops it
	}
	_ = c.Conn.Close()
}
