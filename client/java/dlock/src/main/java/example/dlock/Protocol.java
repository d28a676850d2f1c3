package example.dlock;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.SecureRandom;
import java.time.Duration;
import java.util.HexFormat;
import java.util.concurrent.ThreadLocalRandom;

/** The times of docs/protocol.md, in seconds or as parts of the TTL, and its clock. */
final class Protocol {
    static final Duration TTL = Duration.ofSeconds(20); // unless the caller names one
    static final Duration ELECTION_TTL = Duration.ofSeconds(10);
    static final double LEASE = 0.9; // a lock is ours for this part of its TTL after the question was sent
    static final double DANGER = 0.6; // after this part without a renewal the program is warned
    static final double PERIOD = 1 / 3.0; // of renewals, with a jitter of a tenth
    static final double TOGETHER = 0.2; // what is due this soon is renewed together with what is due now
    static final double ANSWER = 1 / 3.0; // how long the server may take to answer a renewal
    static final double CONFIRM = 0.25; // a grant whose answer took longer is confirmed by a refresh
    static final double REFUSED = 0.1; // until the next try after the server refused a renewal
    static final Duration CLAIM_TTL = Duration.ofSeconds(10); // the longest TTL of a ticket's grant until it is claimed
    static final double POLL = 0.25; // between questions about tickets where there is no LISTEN
    static final double OVERDUE = 1; // how long the server may take to say that a wait is over
    static final double SHORT = 0.1; // a lock that is held for less needs no connection for its renewal
    static final double IDLE = 5; // the connection for renewals is closed after so long without a lock
    static final double SLICE = 0.1; // JDBC cannot be woken while it listens, so it does not listen for longer
    static final double TICK = 1; // the longest sleep of the watch: it does not count the time of a suspension
    static final double HEAR_PAUSE = 0.25; // between questions that events lead to
    static final int HEAR_BURST = 4; // so many at once
    static final double BACKOFF_FIRST = 0.05; // pauses between two tries
    static final double BACKOFF_LAST = 1;
    static final double ABANDON_PAUSE = 0.2;
    static final double ABANDON_LAST = 60;
    static final int MAX_BATCH = 10_000;
    static final int MAX_EARLY = 256;
    static final int MAX_TICKET_BYTES = 1024;
    static final double NEVER = Double.POSITIVE_INFINITY;

    private static final Path UPTIME = Path.of("/proc/uptime");
    private static final double RESOLUTION = 0.01; // of /proc/uptime
    private static final SecureRandom RANDOM = new SecureRandom();
    private static final long START = System.nanoTime();
    private static boolean hasUptime = Files.isReadable(UPTIME);
    private static volatile double offset;
    private static volatile double lookAt;

    private Protocol() {}

    /**
     * Seconds, on a clock that runs while the machine is suspended, as leases do.  System.nanoTime() stands still
     * then.  Linux's uptime does not, but is rounded down, so the largest difference that was seen is the best
     * one; and it costs more than all else, so it is not read more often than it changes.
     */
    static double clock() {
        double now = (System.nanoTime() - START) / 1e9;
        return now < lookAt ? now + offset : look(now);
    }

    private static synchronized double look(double now) {
        if (hasUptime && now >= lookAt) {
            try {
                String uptime = Files.readString(UPTIME);
                offset = Math.max(offset, Double.parseDouble(uptime.substring(0, uptime.indexOf(' '))) - now);
            } catch (IOException | RuntimeException e) {
                hasUptime = false;
            }
        }
        lookAt = hasUptime ? now + RESOLUTION : NEVER;
        return now + offset;
    }

    /** Unique to one request.  Two requests with the same owner would share one grant. */
    static String newOwner() {
        byte[] bytes = new byte[16];
        RANDOM.nextBytes(bytes);
        return HexFormat.of().formatHex(bytes);
    }

    static double jitter(double seconds) {
        return seconds * ThreadLocalRandom.current().nextDouble(0.9, 1.1);
    }

    static double seconds(Duration duration) {
        return duration == null ? NEVER : duration.toMillis() / 1000.0;
    }

    static Duration duration(double seconds) {
        return Duration.ofNanos((long) (Math.max(seconds, 0) * 1e9));
    }

    /** As a parameter; NULL is without limit. */
    static String interval(Duration duration) {
        return duration == null ? null : duration.toMillis() + " ms";
    }
}
