package example.dlock;

import java.time.Duration;

/**
 * Something that happened, for metrics.
 *
 * @param kind what it is
 * @param key the key of the lock
 * @param version its version, or 0 if it was not granted
 * @param time the time waited (GRANTED, BUSY), or what is left (DANGER, ASKED)
 * @param reason why it is lost (deadline, preempted, forced, expired, closed) or asked for (priority, max_hold)
 */
public record Event(Kind kind, String key, long version, Duration time, String reason) {
    /** Kinds of events. */
    public enum Kind {
        /** A request got its lock. */
        GRANTED,
        /** A request ended without the lock. */
        BUSY,
        /** The server has confirmed that it is held for another TTL. */
        RENEWED,
        /** The server has not answered for more than half of the TTL. */
        DANGER,
        /** The holder is asked to finish and to release. */
        ASKED,
        /** The lock is not held any more. */
        LOST,
        /** The holder has released it. */
        RELEASED
    }
}
