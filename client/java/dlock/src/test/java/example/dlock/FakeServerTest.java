package example.dlock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.lang.reflect.Proxy;
import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** The fake that users' unit tests use. */
class FakeServerTest {
    private final List<String> called = new ArrayList<>();
    private final FakeServer server = new FakeServer();
    private final Locks locks = server.locks(mock());
    private final Locks other = server.locks(mock());

    private Connection mock() {
        Object mock = Proxy.newProxyInstance(getClass().getClassLoader(), new Class<?>[] {Connection.class}, (self, method, args) -> {
            called.add(method.getName());
            return method.getReturnType() == boolean.class ? Boolean.TRUE : null;
        });
        return (Connection) mock;
    }

    private boolean isFree(String key) throws InterruptedException {
        Optional<Lease> lease = other.tryAcquire(key, o -> {});
        lease.ifPresent(Lease::close);
        return lease.isPresent();
    }

    @AfterEach
    void close() {
        locks.close();
        other.close();
    }

    @Test
    void isHeldRenewedAskedAndTaken() throws Exception {
        Lease lease = locks.acquire("a", o -> o.ttl(Duration.ofSeconds(9)));
        assertEquals(1, lease.version());
        assertThrows(DlockException.Busy.class, () -> other.acquire("a", o -> o.wait(Duration.ofMillis(300))));
        Duration left = lease.timeLeft();
        while (left.compareTo(lease.timeLeft()) >= 0) { // until it is renewed
            left = lease.timeLeft();
        }
        try (Lease yielding = locks.acquire("b")) {
            server.askToYield("b");
            assertEquals("priority", yielding.asked().get(1, TimeUnit.MINUTES));
        }
        server.take("a");
        assertEquals("forced", lease.lost().get(1, TimeUnit.MINUTES));
        assertThrows(DlockException.Lost.class, lease::close);
        assertTrue(isFree("a"));
        server.hold("a");
        assertFalse(isFree("a"));
    }

    @Test
    void theFenceRejects() throws Exception {
        Lease lease = locks.acquire("a");
        lease.fenced(connection -> connection.createStatement());
        assertEquals(List.of("getAutoCommit", "setAutoCommit", "createStatement", "commit", "setAutoCommit", "close"), called);
        called.clear();
        assertThrows(SQLException.class, () -> lease.fenced(connection -> {
            throw new SQLException("of the program");
        }));
        assertTrue(called.contains("rollback") && !called.contains("commit"));
        called.clear();
        server.hold("a");
        assertThrows(DlockException.Lost.class, () -> lease.fenced(connection -> connection.createStatement()));
        assertFalse(called.contains("createStatement") || called.contains("commit"));
    }

    @Test
    void kindsOfLocks() throws Exception {
        try (Lease both = locks.acquire(List.of("c", "d"), o -> {}); Lease shared = locks.acquire("s", o -> o.shared())) {
            assertThrows(DlockException.Busy.class, () -> other.acquire(List.of("e", "d"), o -> o.wait(Duration.ZERO)));
            other.acquire("s", o -> o.shared()).close();
            assertFalse(isFree("s"));
            assertTrue(isFree("e"));
        }
        try (Lease one = locks.acquire("n", o -> o.slots(2)); Lease two = other.acquire("n", o -> o.slots(2))) {
            assertTrue(other.tryAcquire("n", o -> o.slots(2)).isEmpty());
        }
        locks.acquire("job", o -> o.atLeast(Duration.ofMinutes(1))).close();
        assertFalse(isFree("job"));
        assertEquals(Duration.ZERO, locks.limit("r", 1, Duration.ofMinutes(1)));
        assertTrue(locks.limit("r", 1, Duration.ofMinutes(1)).toMillis() > 0);
        try (Lease boss = locks.elect("boss", o -> o.value("x"))) {
            boss.setValue("y");
            assertEquals("y", other.leader("boss").orElseThrow().value());
        }
    }
}
