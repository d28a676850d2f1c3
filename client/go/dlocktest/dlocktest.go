// Package dlocktest has a fake of the server for unit tests, in memory.
package dlocktest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"dlock.example/pg-dlock"
	"dlock.example/pg-dlock/internal/stmt"
)

// Server has locks that all of its clients share. It has no priorities, no tickets and no durability.
type Server struct {
	mu      sync.Mutex
	held    map[string][]*grant
	conns   map[*conn]struct{}
	version int64
}

type grant struct {
	version, owner, value     string
	slots                     int // 1: exclusive; math.MaxInt: shared
	ttl, atLeast              time.Duration
	since, until              time.Time
	cooling, asked, unlimited bool
}

// NewServer makes an empty one.
func NewServer() *Server { return &Server{held: map[string][]*grant{}, conns: map[*conn]struct{}{}} }

// Locks of a client. tx is what the function of pgxdlock.Fenced or sqldlock.Fenced is called with: a mock, or nil.
func (s *Server) Locks(tx any, opts ...dlock.LocksOption) *dlock.Locks {
	return dlock.New(source{s, tx}, opts...)
}

// Take a lock away from all its holders.
func (s *Server) Take(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.live(key)
	delete(s.held, key)
	s.tell("forced", key, taken)
}

// Hold: another client gets the lock, and keeps it until Take.
func (s *Server) Hold(key string) {
	s.Take(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.grant(key, 0, "another", "", 1, 0).unlimited = true
}

// AskToYield asks the holders of a lock to yield, as a request with a higher priority does.
func (s *Server) AskToYield(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.live(key) {
		g.asked = true
	}
	s.tell("preempt", key, s.live(key))
}

func (s *Server) tell(event, key string, whom []*grant) {
	for _, g := range whom {
		version, _ := strconv.ParseInt(g.version, 10, 64)
		payload, _ := json.Marshal(map[string]any{"event": event, "key": key, "version": version})
		for c := range s.conns {
			select {
			case c.events <- string(payload):
			default: // as from a server whose queue is full
			}
		}
	}
}

func (s *Server) live(key string) []*grant {
	s.held[key] = slices.DeleteFunc(s.held[key], func(g *grant) bool { return !g.unlimited && !g.until.After(time.Now()) })
	return slices.Clone(s.held[key])
}

func (s *Server) find(key, version string) *grant {
	for _, g := range s.live(key) {
		if g.version == version && !g.cooling {
			return g
		}
	}
	return nil
}

func (s *Server) grant(key string, ttl time.Duration, owner, value string, slots int, atLeast time.Duration) *grant {
	live := s.live(key)
	for _, g := range live {
		if g.owner == owner && !g.cooling {
			return g
		}
		if g.slots == 1 || slots == 1 {
			return nil
		}
	}
	if len(live) >= slots {
		return nil
	}
	s.version++
	t := time.Now()
	g := &grant{version: fmt.Sprint(s.version), owner: owner, value: value, slots: slots, ttl: ttl, atLeast: atLeast,
		since: t, until: t.Add(ttl)}
	s.held[key] = append(s.held[key], g)
	return g
}

func (s *Server) release(key, version, owner string) string {
	for _, g := range s.live(key) {
		if !g.cooling && (g.version == version || version == "") && g.owner == owner {
			g.cooling, g.until = true, g.since.Add(g.atLeast)
			return "released"
		}
	}
	return "not_held"
}

func (s *Server) refresh(key, version string) *string {
	g := s.find(key, version)
	if g == nil {
		return nil
	}
	g.until = time.Now().Add(g.ttl)
	return text(g.ttl.Milliseconds())
}

func (s *Server) answer(sql string, args []any) ([]dlock.Row, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := make([]string, len(args))
	for i, arg := range args {
		if arg != nil {
			p[i] = fmt.Sprint(arg)
		}
	}
	switch strings.ReplaceAll(sql, "fake.", "@.") {
	case stmt.Hello:
		return one(text(1), text("fake")), nil
	case stmt.Features:
		return one(text("fake"), text(dlock.Version), text("{}")), nil
	case stmt.Listen:
		return nil, nil
	case stmt.Try:
		if g := s.grant(p[0], duration(p[1]), p[2], p[3], places(p[7], p[11]), duration(p[8])); g != nil {
			return one(&g.version), nil
		}
		return one(nil), nil
	case stmt.TryAll:
		keys, slots, shared := split(p[0]), split(p[5]), split(p[6])
		var versions []string
		for i, key := range keys {
			if g := s.grant(key, duration(p[1]), p[2], p[3], places(slots[i], shared[i]), 0); g != nil {
				versions = append(versions, g.version)
				continue
			}
			for i, version := range versions {
				s.release(keys[i], version, p[2])
			}
			return one(nil), nil
		}
		return one(text("{" + strings.Join(versions, ",") + "}")), nil
	case stmt.Renew:
		keys, versions, refreshed := split(p[0]), split(p[1]), split(p[3])
		var rows []dlock.Row
		for i, key := range keys {
			var lasts *string
			if refreshed[i] == "true" {
				lasts = s.refresh(key, versions[i])
			}
			state := "not_held"
			if g := s.find(key, versions[i]); g != nil && g.asked {
				state = "preempting"
			} else if g != nil {
				state = "held"
			} else if len(s.live(key)) > 0 {
				state = "held_by_other"
			}
			rows = append(rows, dlock.Row{text(i + 1), lasts, &state, text(1000)})
		}
		return rows, nil
	case stmt.Refresh:
		lasts := s.refresh(p[0], p[1])
		if lasts != nil && args[3] != nil {
			s.find(p[0], p[1]).value = p[3]
		}
		return one(lasts), nil
	case stmt.Release:
		var rows []dlock.Row
		versions, owners := split(p[1]), split(p[2])
		for i, key := range split(p[0]) {
			rows = append(rows, dlock.Row{text(s.release(key, versions[i], owners[i]))})
		}
		return rows, nil
	case stmt.GiveBackPortable:
		var rows []dlock.Row
		owners := split(p[1])
		for i, key := range split(p[0]) {
			rows = append(rows, dlock.Row{text(s.release(key, "", owners[i]))})
		}
		return rows, nil
	case stmt.Fence:
		if s.find(p[0], p[1]) == nil {
			return nil, notHeld(fmt.Sprintf("lock %q is not held with version %s", p[0], p[1]))
		}
		return nil, nil
	case stmt.Limit:
		n, _ := strconv.Atoi(p[1])
		per := duration(p[2])
		s.version++
		if g := s.grant(p[0], per, fmt.Sprint("limit ", s.version), "", n, per); g != nil {
			g.cooling = true
			return one(text(0)), nil
		}
		next := s.live(p[0])[0].until
		return one(text(time.Until(next).Milliseconds() + 1)), nil
	case stmt.Get:
		var rows []dlock.Row
		for _, g := range s.live(p[0]) {
			if !g.cooling {
				rows = slices.Insert(rows, 0, dlock.Row{text(g.version), text(g.owner), text(g.value), text("held")})
			}
		}
		return rows, nil
	}
	return nil, errors.New("the fake cannot answer: " + sql)
}

type notHeld string

func (e notHeld) Error() string  { return string(e) }
func (notHeld) SQLState() string { return "LK001" }

func one(row ...*string) []dlock.Row { return []dlock.Row{row} }

func text(value any) *string {
	s := fmt.Sprint(value)
	return &s
}

func duration(interval string) time.Duration {
	n, _ := strconv.ParseInt(strings.TrimSuffix(interval, " microseconds"), 10, 64)
	return time.Duration(n) * time.Microsecond
}

func places(slots, shared string) int {
	n, _ := strconv.Atoi(slots)
	if shared == "true" {
		n = math.MaxInt
	}
	return n
}

func split(array string) (values []string) {
	_ = json.Unmarshal([]byte("["+array[1:len(array)-1]+"]"), &values)
	return values
}

// The connections

type source struct {
	server *Server
	tx     any
}

type conn struct {
	server *Server
	events chan string
}

func (s source) Borrow(context.Context) (dlock.Conn, error) { return &conn{server: s.server}, nil }

func (s source) Open(context.Context) (dlock.Conn, error) {
	c := &conn{s.server, make(chan string, 1000)}
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	s.server.conns[c] = struct{}{}
	return c, nil
}

func (s source) Transaction(ctx context.Context, body func(tx any, exec dlock.Exec) error) error {
	return body(s.tx, func(sql string, args ...any) error {
		_, err := s.server.answer(sql, args)
		return err
	})
}

func (c *conn) Query(ctx context.Context, sql string, args ...any) ([]dlock.Row, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return c.server.answer(sql, args)
}

func (c *conn) PID() uint32 { return 1 }

func (c *conn) Wait(ctx context.Context) (string, error) {
	select {
	case payload := <-c.events:
		return payload, nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func (c *conn) Close(bool) {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	delete(c.server.conns, c)
}
