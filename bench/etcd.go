// The load generator for etcd, whose client library is in Go.  Its options,
// its work and the line that it prints are those of load.c, whose banner
// explains them; what does not apply to etcd is missing.
//
// Each client has its own connection and a lease that is kept alive as usual:
// the lease is the TTL.  An acquire is one transaction, which puts the key under
// the lease if it does not exist; a release is another, which deletes it if its
// value is still the owner's.  A lease for each lock, so that each has its own
// TTL, would cost two more writes.  Waiting uses etcd's concurrency.Mutex.
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.etcd.io/etcd/clientv3"
	"go.etcd.io/etcd/clientv3/concurrency"
)

const ttl = 60 // seconds

var (
	target   = flag.String("target", "", "host:port")
	work     = flag.String("work", "cycle", "cycle, try, wait, retry or handover")
	nclients = flag.Int("clients", 1, "connections")
	nkeys    = flag.Int("keys", 100000, "how many keys there are")
	seconds  = flag.Float64("seconds", 1, "how long")
	warmup   = flag.Float64("warmup", 0.3, "how long before that")
	delay    = flag.Float64("delay", 0.01, "between two tries")
	seed     = flag.Int64("seed", 1, "for the choice of keys")
)

var (
	startAt, stopAt time.Time
	ctx             = context.Background()
	errors, busy    int64
	handoverAt      int64 // nanoseconds, 0 = no release was sent
)

type client struct {
	id      int
	cli     *clientv3.Client
	session *concurrency.Session
	random  *rand.Rand
	serial  int
	samples []time.Duration
	grants  int64
	spent   time.Duration // in acquires that were granted
	cycles  int64
}

func die(what string, err error) {
	fmt.Fprintf(os.Stderr, "etcd: %s: %v\n", what, err)
	os.Exit(1)
}

func complain(what string, err error) {
	if atomic.AddInt64(&errors, 1) <= 5 {
		fmt.Fprintf(os.Stderr, "etcd: %s: %v\n", what, err)
	}
}

func open(id int) *client {
	cli, err := clientv3.New(clientv3.Config{Endpoints: []string{*target}, DialTimeout: 10 * time.Second})
	if err != nil {
		die("could not connect", err)
	}
	session, err := concurrency.NewSession(cli, concurrency.WithTTL(ttl))
	if err != nil {
		die("could not get a lease", err)
	}
	return &client{id: id, cli: cli, session: session, random: rand.New(rand.NewSource(*seed<<32 + int64(id)))}
}

func (c *client) close() {
	if err := c.session.Close(); err != nil {
		complain("revoke", err)
	}
	c.cli.Close()
}

func (c *client) owner() string {
	c.serial++
	return fmt.Sprintf("%d-%d-%d", os.Getpid(), c.id, c.serial)
}

func (c *client) acquire(key, owner string) bool {
	r, err := c.cli.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, owner, clientv3.WithLease(c.session.Lease()))).
		Commit()
	if err != nil {
		complain("acquire", err)
		return false
	}
	return r.Succeeded
}

func (c *client) release(key, owner string) {
	r, err := c.cli.Txn(ctx).
		If(clientv3.Compare(clientv3.Value(key), "=", owner)).
		Then(clientv3.OpDelete(key)).
		Commit()
	if err != nil {
		complain("release", err)
	} else if !r.Succeeded {
		complain("release", fmt.Errorf("not the owner"))
	}
}

func counts(at time.Time) bool {
	return !at.Before(startAt) && !at.After(stopAt)
}

func (c *client) record(begun, ended time.Time) {
	if counts(ended) {
		c.samples = append(c.samples, ended.Sub(begun))
	}
	c.cycles++
}

func (c *client) granted(begun time.Time) time.Time {
	at := time.Now()
	if counts(at) {
		c.grants++
		c.spent += at.Sub(begun)
	}
	return at
}

func (c *client) cycle() {
	own := *nkeys / *nclients
	key := fmt.Sprintf("lock/%d", c.id+c.random.Intn(own)**nclients)
	owner := c.owner()
	begun := time.Now()
	if !c.acquire(key, owner) {
		atomic.AddInt64(&busy, 1)
		complain("cycle", fmt.Errorf("a lock that should be free was not granted"))
		return
	}
	c.granted(begun)
	c.release(key, owner)
	c.record(begun, time.Now())
}

func (c *client) try() {
	begun := time.Now()
	if c.acquire("lock/0", c.owner()) {
		complain("try", fmt.Errorf("granted, though the key is taken"))
	}
	atomic.AddInt64(&busy, 1)
	c.record(begun, time.Now())
}

func (c *client) pause() {
	time.Sleep(time.Duration(*delay * (0.5 + c.random.Float64()) * float64(time.Second)))
}

func (c *client) retry() {
	owner := c.owner()
	begun := time.Now()
	for !c.acquire("lock/0", owner) {
		atomic.AddInt64(&busy, 1)
		if time.Now().After(stopAt) {
			return
		}
		c.pause()
	}
	c.record(begun, c.granted(begun))
	c.release("lock/0", owner)
	c.pause()
}

func (c *client) wait() {
	mutex := concurrency.NewMutex(c.session, "lock/queue")
	begun := time.Now()
	if err := mutex.Lock(ctx); err != nil {
		complain("lock", err)
		return
	}
	at := c.granted(begun)
	if *work == "handover" {
		if sent := atomic.SwapInt64(&handoverAt, 0); sent > 0 {
			c.record(time.Unix(0, sent), at)
		}
		time.Sleep(2 * time.Millisecond) // the other falls asleep
		atomic.StoreInt64(&handoverAt, time.Now().UnixNano())
	} else {
		c.record(begun, at)
	}
	if err := mutex.Unlock(ctx); err != nil {
		complain("unlock", err)
	}
}

func cpuSeconds() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		die("getrusage", err)
	}
	return float64(u.Utime.Sec+u.Stime.Sec) + float64(u.Utime.Usec+u.Stime.Usec)/1e6
}

func report(clients []*client, cpu float64, left int64) {
	var samples []time.Duration
	var sum, spent time.Duration
	var grants int64
	least := clients[0].cycles
	for _, c := range clients {
		samples = append(samples, c.samples...)
		grants += c.grants
		spent += c.spent
		if c.cycles < least {
			least = c.cycles
		}
	}
	sort.Slice(samples, func(i, j int) bool { return samples[i] < samples[j] })
	for _, s := range samples {
		sum += s
	}
	us := func(d time.Duration) float64 { return float64(d) / 1000 }
	quantile := func(q float64) float64 {
		if len(samples) == 0 {
			return 0
		}
		return us(samples[int(q*float64(len(samples)-1))])
	}
	mean := func(sum time.Duration, n int64) float64 {
		if n == 0 {
			return 0
		}
		return us(sum) / float64(n)
	}
	fmt.Printf("cycles=%d rate=%.1f mean_us=%.1f p50_us=%.1f p99_us=%.1f max_us=%.1f "+
		"acquire_us=%.1f grants=%d busy=%d errors=%d left=%d least=%d cpu=%.3f pid=0\n",
		len(samples), float64(len(samples)) / *seconds, mean(sum, int64(len(samples))),
		quantile(0.5), quantile(0.99), quantile(1), mean(spent, grants), grants, busy, errors, left, least, cpu)
}

func main() {
	if len(os.Args) < 2 || os.Args[1] != "etcd" || flag.CommandLine.Parse(os.Args[2:]) != nil || *target == "" {
		fmt.Fprintln(os.Stderr, "usage: etcd etcd --target HOST:PORT [options]")
		flag.PrintDefaults()
		os.Exit(2)
	}
	step, known := map[string]func(*client){
		"cycle": (*client).cycle, "try": (*client).try, "wait": (*client).wait,
		"retry": (*client).retry, "handover": (*client).wait,
	}[strings.TrimSpace(*work)]
	if !known {
		die("no such work", fmt.Errorf("%s", *work))
	}
	if *work == "handover" {
		*nclients = 2
	}

	holder := open(*nclients)
	held := holder.owner()
	if *work == "try" && !holder.acquire("lock/0", held) {
		die("could not prepare", fmt.Errorf("a lock was not granted"))
	}
	clients := make([]*client, *nclients)
	for i := range clients {
		clients[i] = open(i)
	}

	cpu, wall := cpuSeconds(), time.Now()
	startAt = wall.Add(time.Duration(*warmup * float64(time.Second)))
	stopAt = startAt.Add(time.Duration(*seconds * float64(time.Second)))
	var group sync.WaitGroup
	for _, c := range clients {
		group.Add(1)
		go func(c *client) {
			defer group.Done()
			for time.Now().Before(stopAt) {
				step(c)
			}
		}(c)
	}
	group.Wait()
	cpu = (cpuSeconds() - cpu) / time.Since(wall).Seconds()

	if *work == "try" {
		holder.release("lock/0", held)
	}
	r, err := holder.cli.Get(ctx, "lock/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		die("count", err)
	}
	for _, c := range clients {
		c.close()
	}
	holder.close()
	report(clients, cpu, r.Count)
	if errors > 0 || r.Count > 0 {
		os.Exit(1)
	}
}
