// Package test has the tests with a server, which PGHOST, PGPORT, PGUSER and PGDATABASE name.
package test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"testing"
	"time"

	"dlock.example/pg-dlock"
	"dlock.example/pg-dlock/pgxdlock"
	"dlock.example/pg-dlock/sqldlock"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq"
)

const patience = 3 * time.Minute

type client struct {
	locks  *dlock.Locks
	fenced func(ctx context.Context, l *dlock.Lock, text string, args ...any) error
}

func clientOnPgx(t testing.TB, mode pgx.QueryExecMode) client {
	config, err := pgxpool.ParseConfig("sslmode=disable")
	is(t, err, nil)
	config.ConnConfig.DefaultQueryExecMode = mode
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	is(t, err, nil)
	locks := pgxdlock.New(pool)
	t.Cleanup(func() { locks.Close(); pool.Close() })
	return client{locks, func(ctx context.Context, l *dlock.Lock, text string, args ...any) error {
		return pgxdlock.Fenced(ctx, l, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, text, args...)
			return err
		})
	}}
}

func clientOnSQL(t testing.TB, db *sql.DB, connect dlock.Connect) client {
	locks := sqldlock.New(db, connect)
	t.Cleanup(func() { locks.Close(); _ = db.Close() })
	return client{locks, func(ctx context.Context, l *dlock.Lock, text string, args ...any) error {
		return sqldlock.Fenced(ctx, l, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, text, args...)
			return err
		})
	}}
}

var adapters = map[string]func(testing.TB) client{
	"pgx":        func(t testing.TB) client { return clientOnPgx(t, pgx.QueryExecModeCacheStatement) },
	"pgx simple": func(t testing.TB) client { return clientOnPgx(t, pgx.QueryExecModeSimpleProtocol) },
	"sql pgx": func(t testing.TB) client {
		config, err := pgx.ParseConfig("sslmode=disable")
		is(t, err, nil)
		return clientOnSQL(t, stdlib.OpenDB(*config), pgxdlock.Connect(config))
	},
	"sql pq": func(t testing.TB) client {
		db, err := sql.Open("postgres", "sslmode=disable")
		is(t, err, nil)
		own, err := sql.Open("postgres", "sslmode=disable")
		is(t, err, nil)
		t.Cleanup(func() { _ = own.Close() })
		return clientOnSQL(t, db, sqldlock.Connect(own))
	},
}

func is(t testing.TB, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("the error is %v, not %v", err, kind)
	}
}

func needServer(t testing.TB) {
	if os.Getenv("PGHOST") == "" {
		t.Skip("PGHOST names no server")
	}
}

// clean releases one key after the other: a renewal of several could be in the way of a statement for all.
func clean(t *testing.T, ctx context.Context, conn *pgx.Conn) {
	_, err := conn.Exec(ctx, `DO $$ DECLARE k text; BEGIN
		FOR k IN SELECT DISTINCT key FROM dlock_locks LOOP PERFORM dlock_force_release(k, 'end'); COMMIT; END LOOP; END $$`)
	is(t, err, nil)
}

// each calls test with each of the adapters, and a connection to look at the server.
func each(t *testing.T, test func(t *testing.T, ctx context.Context, c client, sql func(text string, args ...any) any)) {
	needServer(t)
	for name, open := range adapters {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			conn, err := pgx.Connect(ctx, "sslmode=disable")
			is(t, err, nil)
			defer func() { _ = conn.Close(context.Background()) }()
			test(t, ctx, open(t), func(text string, args ...any) (value any) {
				t.Helper()
				if err := conn.QueryRow(ctx, text, args...).Scan(&value); err != nil && err != pgx.ErrNoRows {
					t.Fatal(err)
				}
				return value
			})
			clean(t, ctx, conn)
		})
	}
}

func TestFencedWrite(t *testing.T) {
	each(t, func(t *testing.T, ctx context.Context, c client, sql func(string, ...any) any) {
		sql("DROP TABLE IF EXISTS go_journal")
		sql("CREATE TABLE go_journal (version bigint, line text)")
		insert := "INSERT INTO go_journal VALUES ($1, $2)"
		err := c.locks.Do(ctx, "fenced", func(ctx context.Context, l *dlock.Lock) error {
			is(t, c.fenced(ctx, l, insert, l.Version(), `"quoted\`), nil)
			if sql("SELECT version FROM go_journal") != l.Version() {
				t.Error("it is not written")
			}
			return c.fenced(ctx, l, "SELECT 1/0")
		})
		var answer interface{ SQLState() string }
		if !errors.As(err, &answer) || answer.SQLState() != "22012" {
			t.Error(err)
		}
	})
}

func TestLostByForce(t *testing.T) {
	each(t, func(t *testing.T, ctx context.Context, c client, sql func(string, ...any) any) {
		lock, err := c.locks.Acquire(ctx, "forced", dlock.TTL(6*time.Second), dlock.And(`b"\,{}`, "c"), dlock.Value(`{"a": "'"}`))
		is(t, err, nil)
		if v := sql("SELECT value FROM dlock_get($1)", `b"\,{}`); v != `{"a": "'"}` {
			t.Error(v)
		}
		if v := sql("SELECT version FROM dlock_get($1)", `b"\,{}`); v != lock.Versions()[`b"\,{}`] {
			t.Error(v)
		}
		sql("SELECT dlock_force_release('c', 'test')")
		select {
		case <-lock.Context().Done():
			is(t, context.Cause(lock.Context()), dlock.ErrLost)
		case <-ctx.Done():
			t.Fatal("the loss is not told")
		}
		is(t, c.fenced(ctx, lock, "SELECT 1"), dlock.ErrLost)
		is(t, lock.Release(ctx), dlock.ErrLost)
	})
}

func TestFenceOfAConnection(t *testing.T) {
	each(t, func(t *testing.T, ctx context.Context, c client, sql func(string, ...any) any) {
		sql("DROP TABLE IF EXISTS go_autocommit")
		sql("CREATE TABLE go_autocommit (line text)")
		lock, err := c.locks.Acquire(ctx, "connection")
		is(t, err, nil)
		sql("SELECT set_config('dlock.fence', $1, false)", lock.FenceSetting())
		sql("INSERT INTO go_autocommit VALUES ('written')")
		is(t, lock.Release(ctx), nil)
		conn, err := pgx.Connect(ctx, "sslmode=disable")
		is(t, err, nil)
		defer func() { _ = conn.Close(context.Background()) }()
		_, err = conn.Exec(ctx, "SELECT set_config('dlock.fence', $1, false)", lock.FenceSetting())
		is(t, err, nil)
		_, err = conn.Exec(ctx, "INSERT INTO go_autocommit VALUES ('not written')")
		if err == nil {
			t.Error("it is written")
		}
		sql("SELECT set_config('dlock.fence', '', false)")
	})
}

// A wait that the caller ends is withdrawn, and a waiting one is granted.
func TestCancelledWait(t *testing.T) {
	each(t, func(t *testing.T, ctx context.Context, c client, sql func(string, ...any) any) {
		first, err := c.locks.Acquire(ctx, "wait")
		is(t, err, nil)
		waits, cancel := context.WithCancel(ctx)
		cancelled, granted := make(chan error), make(chan error)
		go func() {
			_, err := c.locks.Acquire(waits, "wait")
			cancelled <- err
		}()
		until := func(n int64) {
			t.Helper()
			for sql("SELECT count(*) FROM dlock_waiters WHERE key = 'wait'") != n {
				if ctx.Err() != nil {
					t.Fatal("the number of waiters is wrong")
				}
				time.Sleep(10 * time.Millisecond)
			}
		}
		until(1)
		cancel()
		is(t, <-cancelled, context.Canceled)
		until(0)
		go func() {
			_, err := c.locks.Acquire(ctx, "wait", dlock.Wait(patience))
			granted <- err
		}()
		until(1)
		is(t, first.Release(ctx), nil)
		is(t, <-granted, nil)
	})
}

// A pool without a free connection, whose role is set by a hook, does not keep the renewal from being sent.
func TestExhaustedPool(t *testing.T) {
	needServer(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	config, err := pgxpool.ParseConfig("sslmode=disable pool_max_conns=1")
	is(t, err, nil)
	conn, err := pgx.Connect(ctx, "sslmode=disable")
	is(t, err, nil)
	defer func() { _ = conn.Close(context.Background()) }()
	_, err = conn.Exec(ctx, "DROP ROLE IF EXISTS go_role; CREATE ROLE go_role")
	is(t, err, nil)
	config.AfterConnect = func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, "SET ROLE go_role")
		return err
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	is(t, err, nil)
	defer pool.Close()
	renewed := make(chan struct{}, 100)
	locks := pgxdlock.New(pool, dlock.OnEvent(func(e dlock.Event) {
		if e.Kind == dlock.Renewed {
			renewed <- struct{}{}
		}
	}))
	defer locks.Close()
	err = locks.Do(ctx, "exhausted", func(ctx context.Context, l *dlock.Lock) error {
		conn, err := pool.Acquire(ctx)
		is(t, err, nil)
		defer conn.Release()
		for range 4 {
			select {
			case <-renewed:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return nil
	}, dlock.TTL(5*time.Second))
	is(t, err, nil)
}

// Beside bare SQL with the same driver.
func TestHostileSearchPath(t *testing.T) {
	needServer(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, "sslmode=disable")
	is(t, err, nil)
	defer func() { _ = conn.Close(context.Background()) }()
	_, err = conn.Exec(ctx, `CREATE SCHEMA go_hostile;
		CREATE FUNCTION go_hostile.boom(timestamptz, timestamptz) RETURNS interval LANGUAGE plpgsql AS $$ BEGIN RAISE 'reached'; END $$;
		CREATE OPERATOR go_hostile.- (LEFTARG = timestamptz, RIGHTARG = timestamptz, FUNCTION = go_hostile.boom);
		CREATE FUNCTION go_hostile.same(text, text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'reached'; END $$;
		CREATE OPERATOR go_hostile.= (LEFTARG = text, RIGHTARG = text, FUNCTION = go_hostile.same);
		CREATE OPERATOR go_hostile.<> (LEFTARG = text, RIGHTARG = text, FUNCTION = go_hostile.same);
		CREATE FUNCTION go_hostile.unnest(text[]) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE 'reached'; END $$`)
	is(t, err, nil)
	defer func() { _, _ = conn.Exec(context.Background(), "DROP SCHEMA go_hostile CASCADE") }()
	config, err := pgxpool.ParseConfig("sslmode=disable search_path=go_hostile,pg_catalog,public")
	is(t, err, nil)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	is(t, err, nil)
	defer pool.Close()
	locks := pgxdlock.New(pool)
	defer locks.Close()
	first, err := locks.Acquire(ctx, "hostile", dlock.TTL(3*time.Second), dlock.Cleanup(time.Hour))
	is(t, err, nil)
	for renewed := false; !renewed; time.Sleep(50 * time.Millisecond) {
		is(t, conn.QueryRow(ctx, "SELECT refreshed_at > acquired_at FROM dlock_locks WHERE key = 'hostile'").Scan(&renewed), nil)
	}
	is(t, pgxdlock.Fenced(ctx, first, func(pgx.Tx) error { return nil }), nil)
	waited := make(chan error)
	go func() {
		_, err := locks.Acquire(ctx, "hostile", dlock.Priority(1))
		waited <- err
	}()
	<-first.Asked()
	is(t, first.Release(ctx), nil)
	is(t, <-waited, nil)
	clean(t, ctx, conn)
}

func BenchmarkAcquire(b *testing.B) {
	needServer(b)
	ctx := context.Background()
	for name, open := range adapters {
		b.Run(name, func(b *testing.B) {
			c := open(b)
			for b.Loop() {
				is(b, c.locks.Do(ctx, "bench", func(context.Context, *dlock.Lock) error { return nil }), nil)
			}
		})
	}
	const try = "SELECT dlock_acquire('bench', '20 s', 'bare', wait => '0', session => false)"
	const release = "SELECT dlock_release('bench', $1::int8, 'bare')"
	b.Run("bare pgx", func(b *testing.B) {
		pool, err := pgxpool.New(ctx, "sslmode=disable")
		is(b, err, nil)
		defer pool.Close()
		for b.Loop() {
			var version int64
			is(b, pool.QueryRow(ctx, try).Scan(&version), nil)
			_, err = pool.Exec(ctx, release, version)
			is(b, err, nil)
		}
	})
	for _, driver := range []string{"pgx", "postgres"} {
		b.Run("bare sql "+driver, func(b *testing.B) {
			db, err := sql.Open(driver, "sslmode=disable")
			is(b, err, nil)
			defer func() { _ = db.Close() }()
			for b.Loop() {
				var version int64
				is(b, db.QueryRowContext(ctx, try).Scan(&version), nil)
				_, err = db.ExecContext(ctx, release, version)
				is(b, err, nil)
			}
		})
	}
}
