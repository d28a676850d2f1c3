package example.dlock;

import java.time.Duration;

/** What a request asks for.  {@code locks.acquire("nightly", o -> o.ttl(Duration.ofSeconds(30)))} */
public final class Options {
    Duration ttl;
    Duration wait;
    String value;
    boolean shared;
    int slots = 1;
    int priority;
    Duration cleanup = Duration.ZERO;
    boolean force;
    Duration atLeast = Duration.ZERO;
    Duration delay = Duration.ZERO;
    boolean lazy;
    Duration maxHold;

    Options() {}

    /**
     * How long the lock lasts if its holder dies; 20 s, if it is not given.  It is renewed three times in this time.
     *
     * @param ttl at least a millisecond
     * @return this
     */
    public Options ttl(Duration ttl) {
        this.ttl = ttl;
        return this;
    }

    /**
     * How long to wait for it; without limit, if it is not given.
     *
     * @param wait zero does not wait; null waits without limit
     * @return this
     */
    public Options wait(Duration wait) {
        this.wait = wait;
        return this;
    }

    /**
     * A text that is stored with the grant.
     *
     * @param value up to 64 kB
     * @return this
     */
    public Options value(String value) {
        this.value = value;
        return this;
    }

    /**
     * A shared lock: there may be any number of them, but no exclusive one beside them.
     *
     * @return this
     */
    public Options shared() {
        this.shared = true;
        return this;
    }

    /**
     * A semaphore: one of so many places.
     *
     * @param slots the number of places
     * @return this
     */
    public Options slots(int slots) {
        this.slots = slots;
        return this;
    }

    /**
     * Ask holders of a lower priority to yield.
     *
     * @param priority 0, the default, asks nobody
     * @return this
     */
    public Options priority(int priority) {
        this.priority = priority;
        return this;
    }

    /**
     * The time that this holder gets to finish when a higher priority asks for the lock.
     *
     * @param cleanup zero, the default: the lock is taken at once
     * @return this
     */
    public Options cleanup(Duration cleanup) {
        this.cleanup = cleanup;
        return this;
    }

    /**
     * With a priority: take the lock from a holder that does not yield in time.
     *
     * @return this
     */
    public Options force() {
        this.force = true;
        return this;
    }

    /**
     * The key stays busy for so long after the grant, also if the lock is released before.
     *
     * @param atLeast up to the TTL
     * @return this
     */
    public Options atLeast(Duration atLeast) {
        this.atLeast = atLeast;
        return this;
    }

    /**
     * The key stays busy for so long after its holder was lost.
     *
     * @param delay not after a release
     * @return this
     */
    public Options delay(Duration delay) {
        this.delay = delay;
        return this;
    }

    /**
     * Past its TTL, the lock stays its holder's until another client wants it.
     *
     * @return this
     */
    public Options lazy() {
        this.lazy = true;
        return this;
    }

    /**
     * The lock is not renewed for longer; its holder is asked to finish before.
     *
     * @param maxHold counted from the grant
     * @return this
     */
    public Options maxHold(Duration maxHold) {
        this.maxHold = maxHold;
        return this;
    }

    /** These, if a client can accept them: the server checks the rest. */
    Options checked() {
        for (Duration given : new Duration[] {wait, cleanup, atLeast, delay, maxHold}) {
            if (given != null && given.isNegative()) {
                throw new DlockException.InvalidArgument("a duration must not be negative");
            }
        }
        if (cleanup == null || atLeast == null || delay == null) {
            throw new DlockException.InvalidArgument("only ttl, wait, value and maxHold may be null");
        }
        if (ttl == null) {
            ttl = atLeast.compareTo(Protocol.TTL) > 0 ? atLeast : Protocol.TTL;
        }
        if (ttl.toMillis() < 1) {
            throw new DlockException.InvalidArgument("ttl must be positive");
        }
        return this;
    }

    /** The parameters of Sql.TRY and Sql.ENQUEUE. */
    Object[] terms(String key, Duration ttl, String owner, String... more) {
        Object[] terms = new Object[12 + more.length];
        Object[] first = {key, Protocol.interval(ttl), owner, value, priority, Protocol.interval(cleanup), force, slots,
            Protocol.interval(atLeast), Protocol.interval(delay), lazy, shared};
        System.arraycopy(first, 0, terms, 0, first.length);
        System.arraycopy(more, 0, terms, first.length, more.length);
        return terms;
    }
}
