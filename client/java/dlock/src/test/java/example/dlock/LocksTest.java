package example.dlock;

import static example.dlock.TestServer.eventually;
import static example.dlock.TestServer.grants;
import static example.dlock.TestServer.sql;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.lang.reflect.Proxy;
import java.sql.Connection;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.Lock;
import java.util.concurrent.locks.ReadWriteLock;
import java.util.function.Consumer;
import javax.sql.DataSource;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.postgresql.ds.PGSimpleDataSource;

/** Locks against a real server: what the conformance suite does not know. */
class LocksTest {
    private static final Duration MINUTE = Duration.ofMinutes(1);
    private final ConcurrentLinkedQueue<Event.Kind> kinds = new ConcurrentLinkedQueue<>();
    private final Locks locks = Locks.builder(TestServer.source()).onEvent(event -> kinds.add(event.kind())).build();
    private final Locks other = new Locks(TestServer.source());
    private final String key = TestServer.newKey();

    @AfterEach
    void nothingIsLeft() {
        locks.close();
        other.close();
        eventually(() -> sql("SELECT string_agg(query, '; ') FROM pg_stat_activity "
                + "WHERE application_name = 'dlock' AND datname = current_database()") == null);
    }

    private boolean isFree(String what) throws InterruptedException {
        Optional<Lease> lease = other.tryAcquire(what, o -> {});
        lease.ifPresent(Lease::close);
        return lease.isPresent();
    }

    private static <T> CompletableFuture<T> inThread(java.util.concurrent.Callable<T> body) {
        CompletableFuture<T> result = new CompletableFuture<>();
        new Thread(() -> {
            try {
                result.complete(body.call());
            } catch (Throwable e) {
                result.completeExceptionally(e);
            }
        }).start();
        return result;
    }

    @Test
    void grantedBusyReleased() throws Exception {
        Lease lease = locks.acquire(key, o -> o.ttl(MINUTE));
        assertTrue(lease.isHeld() && lease.version() > 0 && lease.timeLeft().toSeconds() <= 54);
        assertThrows(DlockException.Busy.class, () -> other.acquire(key, o -> o.wait(Duration.ZERO)));
        assertTrue(other.tryAcquire(key, o -> o.wait(Duration.ofMillis(200))).isEmpty());
        lease.release();
        assertThrows(IllegalStateException.class, lease::release);
        lease.close();
        assertFalse(lease.isHeld() || lease.lost().isDone());
        assertThrows(DlockException.Lost.class, lease::check);
        assertEquals(0, grants(key));
        assertTrue(isFree(key));
        assertEquals(List.of(Event.Kind.GRANTED, Event.Kind.RELEASED), List.copyOf(kinds));
    }

    @Test
    void aLossIsThrownAtTheEnd() throws Exception {
        assertThrows(DlockException.Lost.class, () -> {
            try (Lease lease = locks.acquire(key)) {
                sql("SELECT dlock_force_release(?, 'test')", key);
            }
        });
    }

    @Test
    void aNewLockWakesAKeeperThatRests() throws Exception {
        Lease first = locks.acquire(key, o -> o.ttl(Duration.ofHours(1)));
        eventually(() -> (long) sql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'dlock' "
                + "AND datname = current_database() AND state = 'idle' AND query ~ 'dlock_check'") > 0);
        Lease lease = locks.acquire(key + "x", o -> o.ttl(Duration.ofSeconds(4)));
        TestServer.untilRenewed(key + "x");
        assertTrue(lease.isHeld() && first.isHeld());
    }

    @Test
    void severalKeys() throws Exception {
        try (Lease both = locks.acquire(List.of(key + "b", key + "a"), o -> {})) {
            assertEquals(List.of(key + "b", key + "a"), List.copyOf(both.versions().keySet()));
            List<String> overlaps = List.of(key + "c", key + "b");
            assertThrows(DlockException.Busy.class, () -> other.acquire(overlaps, o -> o.wait(Duration.ofMillis(300))));
            both.fenced(connection -> connection.createStatement().execute("SELECT 1"));
        }
        assertEquals(0, grants(key + "c"));
        assertTrue(isFree(key + "a"));
    }

    @Test
    void theLeaderIsObserved() throws Exception {
        BlockingQueue<Optional<Leader>> seen = new LinkedBlockingQueue<>();
        Thread observer = new Thread(() -> {
            assertThrows(InterruptedException.class, () -> other.observe(key, Duration.ofMillis(20), seen::add));
        });
        observer.start();
        assertEquals(Optional.empty(), seen.poll(1, TimeUnit.MINUTES));
        try (Lease leader = locks.elect(key, o -> o.value("http://a"))) {
            Leader found = seen.poll(1, TimeUnit.MINUTES).orElseThrow();
            assertEquals("http://a", found.value());
            assertEquals(leader.version(), found.version());
            leader.setValue("http://b");
            assertEquals("http://b", seen.poll(1, TimeUnit.MINUTES).orElseThrow().value());
        }
        assertEquals(Optional.empty(), seen.poll(1, TimeUnit.MINUTES));
        observer.interrupt();
        observer.join();
    }

    @Test
    void rateLimit() throws Exception {
        assertEquals(Duration.ZERO, locks.limit(key, 2, MINUTE));
        assertEquals(Duration.ZERO, other.limit(key, 2, MINUTE));
        Duration left = locks.limit(key, 2, MINUTE);
        assertTrue(left.toMillis() > 0 && left.compareTo(MINUTE) <= 0);
        assertEquals(Duration.ZERO, locks.limit(key + "x", 1, Duration.ofMillis(500)));
        assertEquals(Duration.ZERO, locks.limit(key + "x", 1, Duration.ofMillis(500), MINUTE, 0));
    }

    @Test
    void lessThanAMillisecondIsNotGoAhead() throws Exception {
        sql("CREATE SCHEMA IF NOT EXISTS almost");
        sql("CREATE OR REPLACE FUNCTION almost.dlock_limit(key text, n int, per interval, wait interval, priority int) "
                + "RETURNS interval LANGUAGE sql AS $$ SELECT interval '1 microsecond' $$");
        String query = Sql.LIMIT.text.replace("@.", "almost.").replace("$1", "'key'").replace("$2", "1")
                .replace("$3", "'1 s'").replace("$4", "0");
        assertEquals(1L, sql(query));
    }

    @Test
    void fences() throws Exception {
        sql("CREATE TABLE IF NOT EXISTS written (what text)");
        Lease lease = locks.acquire(key, o -> o.ttl(MINUTE));
        assertEquals("three", lease.fencedQuery(connection -> {
            assertFalse(connection.getAutoCommit());
            return "three";
        }));
        try (Connection own = TestServer.source().getConnection(); Connection late = TestServer.source().getConnection()) {
            late.createStatement().execute("SET dlock.fence = '" + lease.fenceSetting() + "'");
            late.createStatement().execute("INSERT INTO written VALUES ('ours')");
            own.setAutoCommit(false);
            lease.fence(own);
            own.createStatement().execute("INSERT INTO written VALUES ('ours, too')");
            own.commit();
            sql("SELECT dlock_force_release(?, 'test')", key);
            assertEquals("LK001", assertThrows(SQLException.class, () -> lease.fence(own)).getSQLState());
            assertEquals("LK001", assertThrows(SQLException.class,
                    () -> late.createStatement().execute("INSERT INTO written VALUES ('late')")).getSQLState());
        }
        RuntimeException wrapped = assertThrows(DlockException.Lost.class, () -> lease.fenced(connection -> {}));
        assertEquals("LK001", ((DlockException) wrapped).sqlState());
    }

    @Test
    void viewsAreLocks() throws Exception {
        Lock lock = locks.lock(key, o -> o.ttl(MINUTE));
        lock.lock();
        assertTrue(lock.tryLock()); // again, by the same thread
        assertFalse(inThread(() -> lock.tryLock()).get());
        assertInstanceOfCause(IllegalMonitorStateException.class, inThread(() -> {
            lock.unlock();
            return null;
        }));
        lock.unlock();
        assertFalse(isFree(key));
        CompletableFuture<Boolean> waits = inThread(() -> lock.tryLock(1, TimeUnit.HOURS));
        lock.unlock();
        assertTrue(waits.get());
        assertFalse(isFree(key)); // that thread holds it
        assertThrows(IllegalMonitorStateException.class, lock::unlock);
        assertThrows(UnsupportedOperationException.class, lock::newCondition);
    }

    @Test
    void viewsForReadersAndWriters() throws Exception {
        ReadWriteLock lock = locks.readWriteLock(key, o -> o.ttl(MINUTE));
        lock.readLock().lock();
        other.acquire(key, o -> o.shared()).close();
        assertFalse(inThread(() -> lock.writeLock().tryLock()).get());
        assertThrows(IllegalMonitorStateException.class, () -> lock.writeLock().lock());
        lock.readLock().unlock();
        lock.writeLock().lock();
        assertTrue(other.tryAcquire(key, o -> o.shared()).isEmpty());
        lock.writeLock().unlock();
    }

    private static void assertInstanceOfCause(Class<?> expected, CompletableFuture<?> failed) {
        Exception error = assertThrows(Exception.class, failed::get);
        assertEquals(expected, error.getCause().getClass());
    }

    @Test
    void anInterruptEndsAWait() throws Exception {
        Lease lease = locks.acquire(key, o -> o.ttl(MINUTE));
        AtomicReference<Thread> waiting = new AtomicReference<>();
        CompletableFuture<Lease> result = inThread(() -> {
            waiting.set(Thread.currentThread());
            return other.acquire(key);
        });
        eventually(() -> (long) sql("SELECT count(*) FROM dlock_waiters WHERE key = ?", key) == 1);
        waiting.get().interrupt();
        assertInstanceOfCause(InterruptedException.class, result);
        eventually(() -> (long) sql("SELECT count(*) FROM dlock_waiters WHERE key = ?", key) == 0);
        assertTrue(lease.isHeld());
    }

    @Test
    void anInterruptDoesNotEndLock() throws Exception {
        Lease lease = locks.acquire(key, o -> o.ttl(MINUTE));
        AtomicReference<Thread> waiting = new AtomicReference<>();
        CompletableFuture<Boolean> result = inThread(() -> {
            waiting.set(Thread.currentThread());
            Lock lock = other.lock(key);
            lock.lock();
            lock.unlock();
            return Thread.interrupted();
        });
        eventually(() -> (long) sql("SELECT count(*) FROM dlock_waiters WHERE key = ?", key) == 1);
        waiting.get().interrupt();
        assertTrue(lease.isHeld());
        lease.close();
        assertTrue(result.get());
    }

    @Test
    void extended() throws Exception {
        Lease lease = locks.acquire(key, o -> o.ttl(Duration.ofSeconds(20)).maxHold(Duration.ofSeconds(20)));
        lease.extend(Duration.ofMinutes(10), MINUTE);
        assertTrue(lease.timeLeft().toSeconds() > 500);
        lease.close();
        assertFalse(isFree(key)); // at least a minute
    }

    @Test
    void askedToYield() throws Exception {
        Lease lease = locks.acquire(key, o -> o.ttl(MINUTE).cleanup(Duration.ofSeconds(200)));
        CompletableFuture<Lease> higher = inThread(() -> other.acquire(key, o -> o.ttl(MINUTE).priority(5).wait(Duration.ofMinutes(5))));
        assertEquals("priority", lease.asked().get(1, TimeUnit.MINUTES));
        assertTrue(lease.timeLeft().compareTo(Duration.ofSeconds(200)) <= 0);
        lease.close();
        higher.get().close();
    }

    @Test
    void aPoolThatIsEmptyLosesNoLock() throws Exception {
        HikariConfig config = new HikariConfig();
        config.setJdbcUrl(TestServer.source().getUrl());
        config.setUsername(System.getenv("PGUSER"));
        config.setMaximumPoolSize(1);
        config.setAutoCommit(false);
        try (HikariDataSource pool = new HikariDataSource(config); Locks pooled = new Locks(pool)) {
            Lease lease = pooled.acquire(key, o -> o.ttl(Duration.ofSeconds(9)));
            try (Connection mine = pool.getConnection()) {
                assertFalse(mine.getAutoCommit()); // as the pool was
                TestServer.untilRenewed(key);
                assertTrue(lease.isHeld());
            }
        }
    }

    @Test
    void aPoolThatSaysNothingOfItselfGetsItsConnectionBack() throws Exception {
        HikariConfig config = new HikariConfig();
        config.setDataSource(TestServer.source());
        config.setMaximumPoolSize(2);
        try (HikariDataSource pool = new HikariDataSource(config)) {
            Object silent = Proxy.newProxyInstance(getClass().getClassLoader(), new Class<?>[] {DataSource.class},
                    (self, method, args) -> pool.getConnection());
            try (Locks pooled = new Locks((DataSource) silent); Lease lease = pooled.acquire(key, o -> o.ttl(Duration.ofSeconds(9)))) {
                TestServer.untilRenewed(key);
                assertTrue(lease.isHeld());
            }
            try (Connection one = pool.getConnection(); Connection two = pool.getConnection()) {
                for (Connection each : List.of(one, two)) {
                    ResultSet listens = each.createStatement().executeQuery("SELECT pg_listening_channels()");
                    assertFalse(listens.next());
                }
            }
        }
    }

    @Test
    void aSourceOfTransactionsIsRefused() throws Exception {
        try (Connection open = TestServer.source().getConnection()) {
            open.setAutoCommit(false);
            open.createStatement().execute("SELECT 1");
            PGSimpleDataSource transactional = new PGSimpleDataSource() {
                private static final long serialVersionUID = 1;

                @Override
                public Connection getConnection() {
                    return open;
                }
            };
            try (Locks bad = new Locks(transactional)) {
                assertThrows(DlockException.InvalidArgument.class, () -> bad.acquire(key));
            }
        }
        assertEquals(0, grants(key));
    }

    @Test
    void collectedWithoutRelease() throws Exception {
        Locks dropped = new Locks(TestServer.source());
        dropped.acquire(key, o -> o.ttl(Duration.ofSeconds(9)));
        eventually(() -> {
            System.gc();
            return dropped.core.isIdle();
        });
        assertEquals(1, grants(key));
        eventually(() -> grants(key) == 0); // nobody renews it
        dropped.close();
    }

    @Test
    void badArguments() throws Exception {
        Duration negative = Duration.ofSeconds(-1);
        List<Consumer<Options>> bad = List.of(o -> o.ttl(Duration.ZERO), o -> o.ttl(negative), o -> o.wait(negative),
                o -> o.cleanup(negative), o -> o.ttl(Duration.ofDays(12)), o -> o.slots(0), o -> o.priority(-1),
                o -> o.delay(null), o -> o.ttl(Duration.ofSeconds(1)).atLeast(Duration.ofSeconds(5)));
        for (Consumer<Options> options : bad) {
            assertThrows(DlockException.InvalidArgument.class, () -> locks.acquire(key, options));
        }
        for (String name : List.of("", "k".repeat(2000), "nul\0")) {
            assertThrows(DlockException.InvalidArgument.class, () -> locks.acquire(name));
        }
        assertEquals(0, grants(key));
    }

    @Test
    void noExtension() throws Exception {
        try (Locks bad = new Locks(TestServer.source("template1"))) {
            assertTrue(assertThrows(DlockException.NotReady.class, () -> bad.acquire(key)).getMessage().contains("CREATE EXTENSION"));
        }
        sql("CREATE SCHEMA old");
        try (Locks old = Locks.builder(TestServer.source()).schema("old").build()) {
            assertTrue(assertThrows(DlockException.NotReady.class, () -> old.acquire(key)).getMessage().contains("dlock_features"));
        }
    }

    @Test
    void hostileSearchPath() throws Exception {
        try (Connection connection = TestServer.source().getConnection(); Statement statement = connection.createStatement()) {
            statement.execute("CREATE SCHEMA hostile; CREATE FUNCTION hostile.boom(timestamptz, timestamptz) RETURNS interval "
                    + "LANGUAGE plpgsql AS $$ BEGIN RAISE 'reached'; END $$; "
                    + "CREATE OPERATOR hostile.- (LEFTARG = timestamptz, RIGHTARG = timestamptz, FUNCTION = hostile.boom); "
                    + "CREATE FUNCTION hostile.unnest(text[]) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE 'reached'; END $$");
        }
        PGSimpleDataSource hostile = TestServer.source();
        hostile.setOptions("-c search_path=hostile,pg_catalog");
        try (Locks exposed = new Locks(hostile); Lease lease = exposed.acquire(key, o -> o.ttl(Duration.ofSeconds(9)))) {
            TestServer.untilRenewed(key);
            assertNotEquals(0, lease.version());
            lease.fenced(connection -> {});
        }
    }
}
