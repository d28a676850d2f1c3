package example.dlock.spring;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotSame;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import example.dlock.Locks;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.time.Duration;
import java.util.ConcurrentModificationException;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.locks.Lock;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.postgresql.ds.PGSimpleDataSource;
import org.springframework.integration.leader.Context;
import org.springframework.integration.leader.DefaultCandidate;
import org.springframework.integration.support.leader.LockRegistryLeaderInitiator;
import org.springframework.integration.support.locks.DistributedLock;

/**
 * What Spring Integration expects of a registry, and its leader election on ours, in the database that PGHOST, PGPORT,
 * PGDATABASE and PGUSER name.  Spring publishes no tests for the registries of others.
 */
class DlockRegistryTest {
    private final PGSimpleDataSource source = new PGSimpleDataSource();
    private final Locks locks;
    private final Locks otherLocks;
    private final DlockRegistry registry;
    private final DlockRegistry other;
    private final String key = UUID.randomUUID().toString();

    DlockRegistryTest() {
        source.setURL("jdbc:postgresql://" + System.getenv("PGHOST") + ":" + System.getenv("PGPORT") + "/" + System.getenv("PGDATABASE"));
        source.setUser(System.getenv("PGUSER"));
        locks = new Locks(source);
        otherLocks = new Locks(source);
        registry = new DlockRegistry(locks, "spring:", o -> o.ttl(Duration.ofMinutes(1)));
        other = new DlockRegistry(otherLocks, "spring:", o -> o.ttl(Duration.ofMinutes(1)));
    }

    @AfterEach
    void close() {
        locks.close();
        otherLocks.close();
    }

    private void forceRelease() throws SQLException {
        try (Connection connection = source.getConnection();
                PreparedStatement statement = connection.prepareStatement("SELECT dlock_force_release(?, 'test')")) {
            statement.setString(1, "spring:" + key);
            statement.execute();
        }
    }

    /** In another thread. */
    private static boolean tries(Lock lock) throws InterruptedException, ExecutionException {
        return CompletableFuture.supplyAsync(() -> {
            boolean locked = lock.tryLock();
            if (locked) {
                lock.unlock();
            }
            return locked;
        }).get();
    }

    @Test
    void isReentrantAndExclusive() throws Exception {
        Lock lock = registry.obtain(key);
        assertSame(lock, registry.obtain(key));
        lock.lock();
        assertTrue(lock.tryLock(1, TimeUnit.MINUTES));
        assertFalse(tries(lock));
        assertFalse(other.obtain(key).tryLock());
        assertFalse(other.obtain(key).tryLock(50, TimeUnit.MILLISECONDS));
        lock.unlock();
        assertFalse(tries(lock));
        registry.obtain(key).unlock();
        assertTrue(tries(other.obtain(key)));
        assertThrows(IllegalMonitorStateException.class, lock::unlock);
    }

    @Test
    void runsWhatIsLocked() throws Exception {
        assertEquals("done", registry.executeLocked(key, () -> {
            assertThrows(TimeoutException.class, () -> other.executeLocked(key, Duration.ofMillis(50), () -> "never"));
            return "done";
        }));
        assertTrue(tries(other.obtain(key)));
    }

    @Test
    void isRenewedByTheThreadThatHasIt() throws Exception {
        assertThrows(IllegalMonitorStateException.class, () -> registry.renewLock(key));
        DistributedLock lock = registry.obtain(key);
        assertTrue(lock.tryLock(Duration.ZERO, Duration.ofSeconds(30)));
        registry.renewLock(key);
        registry.renewLock(key, Duration.ofMinutes(5));
        forceRelease();
        assertThrows(IllegalStateException.class, () -> registry.renewLock(key, Duration.ofMinutes(5)));
        assertThrows(ConcurrentModificationException.class, lock::unlock);
        lock.lock(Duration.ofSeconds(30));
        lock.unlock();
    }

    @Test
    void forgetsOnlyWhatIsNotUsed() throws Exception {
        Lock lock = registry.obtain(key);
        lock.lock();
        registry.expireUnusedOlderThan(-1);
        assertSame(lock, registry.obtain(key));
        lock.unlock();
        registry.expireUnusedOlderThan(-1);
        assertNotSame(lock, registry.obtain(key));
    }

    /** A candidate that tells when it leads and when not. */
    private static final class Candidate extends DefaultCandidate {
        final CountDownLatch granted = new CountDownLatch(1);
        final CountDownLatch revoked = new CountDownLatch(1);

        @Override
        public void onGranted(Context context) {
            super.onGranted(context);
            granted.countDown();
        }

        @Override
        public void onRevoked(Context context) {
            super.onRevoked(context);
            revoked.countDown();
        }
    }

    private LockRegistryLeaderInitiator initiator(DlockRegistry of, Candidate candidate) {
        LockRegistryLeaderInitiator initiator = new LockRegistryLeaderInitiator(of, candidate);
        initiator.setHeartBeatMillis(20);
        initiator.setBusyWaitMillis(20);
        return initiator;
    }

    @Test
    void springElectsALeader() throws Exception {
        Candidate one = new Candidate();
        Candidate two = new Candidate();
        LockRegistryLeaderInitiator first = initiator(registry, one);
        LockRegistryLeaderInitiator second = initiator(other, two);
        first.start();
        assertTrue(one.granted.await(1, TimeUnit.MINUTES));
        second.start();
        assertTrue(first.getContext().isLeader());
        first.stop();
        assertTrue(one.revoked.await(1, TimeUnit.MINUTES));
        assertTrue(two.granted.await(1, TimeUnit.MINUTES));
        assertTrue(second.getContext().isLeader());
        second.stop();
        assertTrue(two.revoked.await(1, TimeUnit.MINUTES));
    }
}
