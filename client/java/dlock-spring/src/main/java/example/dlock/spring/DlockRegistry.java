package example.dlock.spring;

import example.dlock.DlockException;
import example.dlock.LockView;
import example.dlock.Locks;
import example.dlock.Options;
import java.time.Duration;
import java.util.ConcurrentModificationException;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Consumer;
import org.springframework.integration.support.locks.DistributedLock;
import org.springframework.integration.support.locks.ExpirableLockRegistry;
import org.springframework.integration.support.locks.RenewableLockRegistry;

/**
 * Locks of Spring Integration in PostgreSQL.  Locks that are held are renewed, also without a renewal task scheduler.
 */
public final class DlockRegistry implements RenewableLockRegistry<DistributedLock>, ExpirableLockRegistry<DistributedLock> {
    private final Locks locks;
    private final String prefix;
    private final Consumer<Options> options;
    private final Map<String, Held> views = new ConcurrentHashMap<>();

    /**
     * A registry of locks with the default TTL.
     *
     * @param locks the locks
     */
    public DlockRegistry(Locks locks) {
        this(locks, "", o -> {});
    }

    /**
     * A registry whose keys begin with a prefix.
     *
     * @param locks the locks
     * @param prefix goes before the text of each key
     * @param options what is asked for; `wait` does not count
     */
    public DlockRegistry(Locks locks, String prefix, Consumer<Options> options) {
        this.locks = locks;
        this.prefix = prefix;
        this.options = options;
    }

    @Override
    public DistributedLock obtain(Object lockKey) {
        return view(lockKey);
    }

    private Held view(Object lockKey) {
        Held view = views.computeIfAbsent(prefix + lockKey, key -> new Held(locks, key, options));
        view.lastUsed = System.nanoTime();
        return view;
    }

    /**
     * Check that this thread holds the lock, which is renewed without this.
     *
     * @throws IllegalStateException it is lost
     */
    @Override
    public void renewLock(Object lockKey) {
        renewed(() -> view(lockKey).lease().check());
    }

    /**
     * Hold the lock with another TTL from now on.
     *
     * @throws IllegalStateException it is lost
     */
    @Override
    public void renewLock(Object lockKey, Duration ttl) {
        renewed(() -> view(lockKey).lease().extend(ttl, null));
    }

    private static void renewed(Runnable renewal) {
        try {
            renewal.run();
        } catch (DlockException.Lost e) {
            throw new IllegalStateException(e.getMessage(), e);
        }
    }

    @Override
    public void expireUnusedOlderThan(long age) {
        long now = System.nanoTime();
        views.values().removeIf(view -> !view.isUsed() && now - view.lastUsed > age * 1_000_000);
    }

    /** The lock of a key. */
    private static final class Held extends LockView implements DistributedLock {
        private volatile long lastUsed;

        Held(Locks locks, String key, Consumer<Options> options) {
            super(locks, key, options);
        }

        @Override
        public void unlock() {
            try {
                super.unlock();
            } catch (DlockException.Lost e) {
                throw new ConcurrentModificationException(e.getMessage(), e);
            }
        }
    }
}
