package example.dlock;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;
import java.util.function.Consumer;

/**
 * A lock as java.util.concurrent.locks has them.  Each thread is a holder of its own, which may acquire it again; the
 * thread that has locked it unlocks it.
 */
public class LockView implements Lock {
    /** What a thread holds. */
    private static final class Mine {
        final Lease lease;
        int count = 1;

        Mine(Lease lease) {
            this.lease = lease;
        }
    }

    private final Locks locks;
    private final String key;
    private final Consumer<Options> options;
    private final ThreadLocal<Mine> mine = new ThreadLocal<>();
    private final AtomicInteger users = new AtomicInteger(); // threads that hold it or ask for it
    private LockView other; // of the same key, with which a thread would lock itself out

    /**
     * A view of the lock with that key.
     *
     * @param locks the locks
     * @param key what is locked
     * @param options what is asked for; `wait` does not count
     */
    public LockView(Locks locks, String key, Consumer<Options> options) {
        this.locks = locks;
        this.key = key;
        this.options = options;
        Locks.options(new Options(), options);
    }

    final void excludes(LockView read) {
        other = read;
        read.other = this;
    }

    private boolean take(Duration wait, Duration ttl, boolean interruptible) throws InterruptedException {
        Mine before = mine.get();
        if (before != null) {
            before.lease.check();
            before.count++;
            return true;
        }
        if (other != null && other.mine.get() != null) {
            throw new IllegalMonitorStateException("this thread has \"" + key + "\" already, for reading or for writing");
        }
        if (interruptible && Thread.interrupted()) {
            throw new InterruptedException();
        }
        Options wanted = Locks.options(new Options(), options.andThen(o -> o.wait(wait).ttl(ttl == null ? o.ttl : ttl)));
        users.incrementAndGet();
        try {
            mine.set(new Mine(locks.acquire(List.of(key), wanted, interruptible)));
            return true;
        } catch (DlockException.Busy e) {
            return false;
        } finally {
            if (mine.get() == null) {
                users.decrementAndGet();
            }
        }
    }

    private boolean takeCalmly(Duration wait, Duration ttl) {
        try {
            return take(wait, ttl, false);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e); // not without interruptible
        }
    }

    @Override
    public void lock() {
        lock(null);
    }

    /**
     * Acquire it, with another TTL.
     *
     * @param ttl null: that of the options
     */
    public void lock(Duration ttl) {
        takeCalmly(null, ttl);
    }

    @Override
    public void lockInterruptibly() throws InterruptedException {
        take(null, null, true);
    }

    @Override
    public boolean tryLock() {
        return takeCalmly(Duration.ZERO, null);
    }

    @Override
    public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
        return tryLock(Duration.ofNanos(unit.toNanos(Math.max(time, 0))), null);
    }

    /**
     * Acquire it within that time.
     *
     * @param wait zero does not wait
     * @param ttl null: that of the options
     * @return false: another holder has it
     * @throws InterruptedException while it waited
     */
    public boolean tryLock(Duration wait, Duration ttl) throws InterruptedException {
        return take(wait, ttl, true);
    }

    /**
     * Release it.
     *
     * @throws DlockException.Lost it was not ours any more: what was done may not have been alone
     */
    @Override
    public void unlock() {
        Mine now = mine();
        if (--now.count == 0) {
            mine.remove();
            users.decrementAndGet();
            now.lease.close();
        }
    }

    /**
     * What this thread holds: its version, and whether it is lost.
     *
     * @return the lease; unlock() releases it
     * @throws IllegalMonitorStateException this thread has not locked it
     */
    public Lease lease() {
        return mine().lease;
    }

    /**
     * Does a thread of this program hold it, or wait for it, through this view?
     *
     * @return false: this view can be forgotten
     */
    public final boolean isUsed() {
        return users.get() > 0;
    }

    private Mine mine() {
        Mine now = mine.get();
        if (now == null) {
            throw new IllegalMonitorStateException("this thread has not locked \"" + key + "\"");
        }
        return now;
    }

    @Override
    public Condition newCondition() {
        throw new UnsupportedOperationException("a lock of several processes has no conditions");
    }
}
