package example.dlock;

import static example.dlock.Protocol.clock;

import java.lang.ref.Cleaner;
import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.CompletableFuture;

/**
 * A lock that was acquired, or several that were acquired together.  It is renewed until it is closed.  Any thread may
 * use it.
 */
public final class Lease implements AutoCloseable {
    private static final System.Logger LOG = System.getLogger("dlock");
    static final Cleaner CLEANER = Cleaner.create();

    private final Locks locks; // so that nobody collects it
    private final Core core;
    private final Grant grant;
    private final Cleaner.Cleanable cleanable;
    private boolean released;

    /** Statements of a transaction. */
    @FunctionalInterface
    public interface Work {
        /**
         * Run them.
         *
         * @param connection in a transaction that began with the fence
         * @throws SQLException the transaction is rolled back
         */
        void run(Connection connection) throws SQLException;
    }

    /**
     * Statements of a transaction that have a result.
     *
     * @param <T> its type
     */
    @FunctionalInterface
    public interface Query<T> {
        /**
         * Run them.
         *
         * @param connection in a transaction that began with the fence
         * @return the result
         * @throws SQLException the transaction is rolled back
         */
        T run(Connection connection) throws SQLException;
    }

    Lease(Locks locks, Grant grant) {
        this.locks = locks;
        this.core = locks.core;
        this.grant = grant;
        this.cleanable = CLEANER.register(this, collected(core, grant));
    }

    private static Runnable collected(Core core, Grant grant) {
        return () -> {
            if (core.drop(grant)) {
                LOG.log(System.Logger.Level.WARNING, "lock \"" + grant.holds.get(0).key + "\" was not released; it ends by its TTL");
            }
        };
    }

    /**
     * The (first) key.
     *
     * @return the key
     */
    public String key() {
        return grant.holds.get(0).key;
    }

    /**
     * The fencing token of the (first) key.  It is higher than that of every holder before.
     *
     * @return the version
     */
    public long version() {
        return grant.holds.get(0).version;
    }

    /**
     * The fencing tokens by key, in the order of the request.
     *
     * @return the versions
     */
    public Map<String, Long> versions() {
        Map<String, Long> versions = new LinkedHashMap<>();
        grant.holds.forEach(hold -> versions.put(hold.key, hold.version));
        return versions;
    }

    /**
     * Do we hold it?  This looks at the clock and not at the server, and is exact also in a process that was stopped.
     *
     * @return false: it is lost or released, for ever
     */
    public boolean isHeld() {
        return grant.isHeld(clock());
    }

    /**
     * Throw unless it is ours.
     *
     * @throws DlockException.Lost it is not
     */
    public void check() {
        if (!isHeld()) {
            throw grant.error();
        }
    }

    /**
     * Completes when the lock is lost, with the reason (deadline, preempted, forced, expired, closed); never, if it is
     * released before.  What depends on it must be short, or be asynchronous: it is run by the thread that tells losses.
     *
     * @return for example {@code lost().thenRun(worker::interrupt)}
     */
    public CompletableFuture<String> lost() {
        return grant.lost;
    }

    /**
     * Completes when the holder is asked to finish, with the reason (priority, max_hold).  See timeLeft() and lost().
     *
     * @return the reason
     */
    public CompletableFuture<String> asked() {
        return grant.asked;
    }

    /**
     * How long it is ours: until it must be released, if we are asked to finish, else until its deadline.
     *
     * @return zero if it is not held
     */
    public Duration timeLeft() {
        double now = clock();
        double until = grant.holds.stream().mapToDouble(hold -> hold.deadline).min().orElseThrow();
        return isHeld() ? Protocol.duration(Math.min(until, grant.askedUntil) - now) : Duration.ZERO;
    }

    /**
     * Run statements in a transaction of the pool that begins with the fence.  Until it ends nobody can take the lock, and
     * it fails if the lock is not ours now.
     *
     * @param work the statements; the transaction is committed after them
     * @throws SQLException an error of a statement
     * @throws DlockException.Lost the lock is not ours, nothing was written
     */
    public void fenced(Work work) throws SQLException {
        fencedQuery(connection -> {
            work.run(connection);
            return null;
        });
    }

    /**
     * As fenced(), with a result.
     *
     * @param <T> the type of the result
     * @param query the statements; the transaction is committed after them
     * @return what the statements return
     * @throws SQLException an error of a statement
     * @throws DlockException.Lost the lock is not ours, nothing was written
     */
    public <T> T fencedQuery(Query<T> query) throws SQLException {
        check();
        try (Connection connection = locks.keeper.source.connection()) {
            boolean autoCommit = connection.getAutoCommit();
            connection.setAutoCommit(false);
            T result;
            try {
                fence(connection);
                result = query.run(connection);
                connection.commit();
            } catch (SQLException | RuntimeException | Error e) {
                undo(connection, autoCommit, e);
                throw e;
            }
            connection.setAutoCommit(autoCommit);
            return result;
        } catch (SQLException | RuntimeException e) {
            for (Throwable cause = e; cause != null; cause = cause.getCause()) {
                if (cause instanceof SQLException sql && "LK001".equals(sql.getSQLState())) {
                    throw JdbcSource.translated(sql);
                }
            }
            throw e;
        }
    }

    private static void undo(Connection connection, boolean autoCommit, Throwable error) {
        try {
            connection.rollback();
            connection.setAutoCommit(autoCommit);
        } catch (SQLException e) {
            error.addSuppressed(e);
        }
    }

    /**
     * Run the fence in a transaction of your own, for example one of Spring or of an ORM, as its first statement.  Until
     * that ends nobody can take the lock.
     *
     * @param connection not in autocommit
     * @throws SQLException with SQLSTATE LK001: the lock is not ours
     */
    public void fence(Connection connection) throws SQLException {
        locks.keeper.source.fence(connection, core.schema, grant.holds);
    }

    /**
     * What to set dlock.fence to in a connection of your own: what it writes is committed only while the (first) key is
     * held, in autocommit, too.
     *
     * @return version and key
     */
    public String fenceSetting() {
        return version() + ":" + key();
    }

    /**
     * Replace the value, which those who observe the key see.
     *
     * @param value up to 64 kB
     */
    public void setValue(String value) {
        check();
        Request.refresh(core, locks.keeper, grant.holds.get(0), value, null, null);
    }

    /**
     * Hold it with another TTL from now on.  With a maxHold, it ends that TTL from now.
     *
     * @param ttl the TTL
     * @param atLeast the key stays busy for so long from now, also if the lock is released before; null: as it is
     */
    public void extend(Duration ttl, Duration atLeast) {
        check();
        for (Hold hold : grant.holds) {
            Request.refresh(core, locks.keeper, hold, null, ttl, atLeast);
        }
    }

    /**
     * Release it.
     *
     * @throws DlockException.Lost it was not ours any more: what was done may not have been alone
     * @throws DlockException.Unreachable no answer; it is released in the background, or ends by its TTL
     * @throws IllegalStateException it was released before
     */
    public void release() {
        if (!release(true)) {
            throw new IllegalStateException("the lock is released");
        }
    }

    private boolean release(boolean strict) {
        synchronized (grant) {
            if (released) {
                return false;
            }
            released = true;
        }
        try {
            Request.release(core, locks.keeper, grant);
        } catch (DlockException.Unreachable e) {
            if (strict) {
                throw e;
            }
        } finally {
            cleanable.clean();
        }
        return true;
    }

    /**
     * Release it, unless that was done.  A server that does not answer is no error here: the lock was ours until now, and
     * ends by its TTL if not before.
     *
     * @throws DlockException.Lost as release()
     */
    @Override
    public void close() {
        release(false);
    }
}
