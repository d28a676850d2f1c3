// dlock from Go: database/sql with lib/pq, and plain SQL.
//
//	dlock_example cron KEY TTL COMMAND...   run a command unless it runs elsewhere
//	dlock_example leader KEY TTL NAME       lead, or wait to lead
//	dlock_example writer KEY TTL            write the lines of standard input, fenced
//
// TTL is in seconds.  The server is named by the PG* variables, as for psql.
// Exit status: 75 the lock is busy, 76 it was lost.
package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/lib/pq"
)

const (
	busy = 75
	lost = 76
)

// newOwner names one request.
func newOwner() string {
	b := make([]byte, 16)
	if _, err := rand.Read(b); err != nil {
		log.Fatal(err)
	}
	return fmt.Sprintf("%x", b)
}

// sqlstate is empty for an error that is not the server's.
func sqlstate(err error) string {
	var e *pq.Error
	if errors.As(err, &e) {
		return string(e.Code)
	}
	return ""
}

// acquire returns the version, not valid if the lock is busy.  A lost answer
// is asked for again: the same owner gets the same grant.  It is not
// cancelled by a context: that would leave in doubt whether it was granted.
func acquire(db *sql.DB, key string, ttl time.Duration, owner string, wait time.Duration) (version sql.NullInt64, err error) {
	giveUp := time.Now().Add(wait + ttl)
	for {
		err = db.QueryRow(`SELECT dlock_acquire($1::text, make_interval(secs => $2::float8), owner => $3::text,
			wait => make_interval(secs => $4::float8))`,
			key, ttl.Seconds(), owner, wait.Seconds()).Scan(&version)
		state := sqlstate(err)
		// 57P: the server goes down or starts; 53300: it is full
		passing := state == "" || strings.HasPrefix(state, "57P") || state == "53300"
		if err == nil || !passing || time.Now().After(giveUp) {
			return version, err
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// A lease renews a lock every third of its TTL, from a goroutine and a pool of
// its own, and knows when it can no longer be relied on.
type lease struct {
	db       *sql.DB
	key      string
	version  int64
	ttl      time.Duration
	deadline atomic.Value // time.Time, with its monotonic reading
	gone     int32
	cancel   context.CancelFunc
}

func newLease(key string, version int64, ttl time.Duration) (*lease, error) {
	db, err := connect()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	l := &lease{db: db, key: key, version: version, ttl: ttl, cancel: cancel}
	l.deadline.Store(time.Now())
	// The first renewal is at once: the acquire may have waited, so when the
	// grant began is not known here.
	pause := l.renew(ctx)
	go func() {
		for atomic.LoadInt32(&l.gone) == 0 {
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
				pause = l.renew(ctx)
			}
		}
	}()
	return l, nil
}

// renew returns when to renew again.
func (l *lease) renew(ctx context.Context) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, l.ttl/3)
	defer cancel()
	sent := time.Now()
	var expiry sql.NullTime
	err := l.db.QueryRowContext(ctx, "SELECT dlock_refresh($1::text, $2::bigint)", l.key, l.version).Scan(&expiry)
	switch {
	case err != nil:
		// Not known: the deadline stands, a new connection may still make it.
		return l.ttl / 20
	case !expiry.Valid:
		atomic.StoreInt32(&l.gone, 1)
	default:
		// From before it was sent, and a tenth less: the server ends later.
		l.deadline.Store(sent.Add(l.ttl * 9 / 10))
	}
	return l.ttl / 3
}

func (l *lease) lost() bool {
	return atomic.LoadInt32(&l.gone) != 0 || !time.Now().Before(l.deadline.Load().(time.Time))
}

func (l *lease) stop() {
	l.cancel()
	l.db.Close()
}

func (l *lease) release(db *sql.DB) error {
	l.stop()
	_, err := db.Exec("SELECT dlock_release($1::text, $2::bigint)", l.key, l.version)
	return err
}

// fencedWrite fails with LK001 if the lock is not ours any more; then nothing
// was written.
func fencedWrite(db *sql.DB, key string, version int64, line string) error {
	tx, err := db.Begin()
	if err != nil {
		return err
	}
	defer tx.Rollback() // of no effect after Commit
	if _, err := tx.Exec("SELECT dlock_fence($1::text, $2::bigint)", key, version); err != nil {
		return err
	}
	if _, err := tx.Exec("INSERT INTO journal (version, line) VALUES ($1, $2)", version, line); err != nil {
		return err
	}
	return tx.Commit()
}

func cron(db *sql.DB, key string, ttl time.Duration, command []string) (int, error) {
	version, err := acquire(db, key, ttl, newOwner(), 0)
	if err != nil || !version.Valid {
		return busy, err
	}
	l, err := newLease(key, version.Int64, ttl)
	if err != nil {
		return 1, err
	}
	if l.lost() {
		return lost, nil
	}
	child := exec.Command(command[0], command[1:]...)
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	if err := child.Start(); err != nil {
		return 1, err
	}
	ended := make(chan error, 1)
	go func() { ended <- child.Wait() }()
	for {
		select {
		case <-ended:
			return child.ProcessState.ExitCode(), l.release(db)
		case <-time.After(ttl / 100):
		}
		if !l.lost() {
			continue
		}
		// What is left until the server's expiry is a tenth of the TTL.
		child.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(ttl / 20):
			child.Process.Kill()
			<-ended
		}
		return lost, nil
	}
}

func leader(db *sql.DB, key string, ttl time.Duration, name string) (int, error) {
	for {
		// unique to this run, so that a restarted process is another candidate
		version, err := acquire(db, key, ttl, name+" "+newOwner(), time.Minute)
		if err != nil {
			return 1, err
		}
		if !version.Valid {
			continue
		}
		l, err := newLease(key, version.Int64, ttl)
		if err != nil {
			return 1, err
		}
		for !l.lost() {
			if err := fencedWrite(db, key, version.Int64, name); sqlstate(err) == "LK001" {
				break
			} else if err != nil {
				return 1, err
			}
			time.Sleep(ttl / 10)
		}
		l.stop()
	}
}

func writer(db *sql.DB, key string, ttl time.Duration) (int, error) {
	version, err := acquire(db, key, ttl, newOwner(), 10*time.Second)
	if err != nil || !version.Valid {
		return busy, err
	}
	l, err := newLease(key, version.Int64, ttl)
	if err != nil {
		return 1, err
	}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		// No l.lost() here: the fence knows better.
		if err := fencedWrite(db, key, version.Int64, in.Text()); sqlstate(err) == "LK001" {
			log.Print("LK001: the lock was lost, nothing was written")
			return lost, nil
		} else if err != nil {
			return 1, err
		}
	}
	return 0, l.release(db)
}

func connect() (*sql.DB, error) {
	return sql.Open("postgres", "connect_timeout=2")
}

func main() {
	if len(os.Args) < 4 {
		log.Fatal("usage: dlock_example cron|leader|writer KEY TTL ...")
	}
	key, rest := os.Args[2], os.Args[4:]
	seconds, err := strconv.ParseFloat(os.Args[3], 64)
	if err != nil {
		log.Fatal(err)
	}
	ttl := time.Duration(seconds * float64(time.Second))
	db, err := connect()
	if err != nil {
		log.Fatal(err)
	}
	status := 2
	switch {
	case os.Args[1] == "cron" && len(rest) > 0:
		status, err = cron(db, key, ttl, rest)
	case os.Args[1] == "leader" && len(rest) == 1:
		status, err = leader(db, key, ttl, rest[0])
	case os.Args[1] == "writer":
		status, err = writer(db, key, ttl)
	}
	if err != nil {
		log.Fatal(err)
	}
	os.Exit(status)
}
