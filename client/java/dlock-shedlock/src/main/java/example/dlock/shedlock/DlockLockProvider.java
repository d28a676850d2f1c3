package example.dlock.shedlock;

import example.dlock.DlockException;
import example.dlock.Lease;
import example.dlock.Locks;
import example.dlock.Options;
import java.time.Duration;
import java.util.Optional;
import net.javacrumbs.shedlock.core.AbstractSimpleLock;
import net.javacrumbs.shedlock.core.ExtensibleLockProvider;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.support.LockException;

/**
 * Locks of ShedLock in PostgreSQL.  A lock ends at the latest after its lockAtMostFor, as ShedLock wants it, or when it
 * is extended, that long after.
 */
public final class DlockLockProvider implements ExtensibleLockProvider {
    private final Locks locks;
    private final String prefix;

    /**
     * A provider.
     *
     * @param locks the locks
     */
    public DlockLockProvider(Locks locks) {
        this(locks, "");
    }

    /**
     * A provider whose keys begin with a prefix.
     *
     * @param locks the locks
     * @param prefix goes before the name of each lock
     */
    public DlockLockProvider(Locks locks, String prefix) {
        this.locks = locks;
        this.prefix = prefix;
    }

    private static void options(Options options, LockConfiguration wanted) {
        Duration atMost = wanted.getLockAtMostFor();
        options.ttl(atMost).maxHold(atMost).atLeast(wanted.getLockAtLeastFor());
    }

    @Override
    public Optional<SimpleLock> lock(LockConfiguration wanted) {
        try {
            return locks.tryAcquire(prefix + wanted.getName(), o -> options(o, wanted)).map(lease -> new Held(wanted, lease));
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new LockException("interrupted", e);
        }
    }

    /** A lock that is held. */
    private static final class Held extends AbstractSimpleLock {
        private final Lease lease;

        Held(LockConfiguration configuration, Lease lease) {
            super(configuration);
            this.lease = lease;
        }

        @Override
        protected void doUnlock() {
            try {
                lease.close();
            } catch (DlockException.Lost e) {
                System.getLogger("dlock").log(System.Logger.Level.WARNING, e.getMessage());
            }
        }

        @Override
        protected Optional<SimpleLock> doExtend(LockConfiguration wanted) {
            try {
                lease.extend(wanted.getLockAtMostFor(), wanted.getLockAtLeastFor());
                return Optional.of(new Held(wanted, lease));
            } catch (DlockException.Lost e) {
                return Optional.empty();
            }
        }
    }
}
