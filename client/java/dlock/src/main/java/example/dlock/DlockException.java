package example.dlock;

import java.util.Map;
import java.util.function.BiFunction;

/** Base of all errors of this package.  None of them is checked. */
public class DlockException extends RuntimeException {
    private static final long serialVersionUID = 1;
    private static final Map<String, BiFunction<String, String, DlockException>> KINDS = Map.ofEntries(
            Map.entry("LK001", Lost::new), Map.entry("55P03", Refused::new), Map.entry("40P01", Deadlock::new),
            Map.entry("42501", Denied::new), Map.entry("3D000", Denied::new), Map.entry("55000", NotReady::new),
            Map.entry("42883", NotReady::new), Map.entry("3F000", NotReady::new), Map.entry("42P01", NotReady::new),
            Map.entry("42704", NotReady::new), Map.entry("42725", NotReady::new), Map.entry("0A000", NotReady::new));

    /** The server's code, or null. */
    private final String sqlState;

    DlockException(String message, String sqlState) {
        super(message);
        this.sqlState = sqlState;
    }

    /**
     * The server's code.
     *
     * @return the SQLSTATE, or null if the server has not answered
     */
    public String sqlState() {
        return sqlState;
    }

    /** What an SQLSTATE means; null: the server did not answer. */
    static DlockException of(String code, String message) {
        if (code == null || code.matches("(08|57P0|25006|25P04|53300).*")) {
            return new Unreachable(message, code);
        }
        if (code.startsWith("22")) {
            return new InvalidArgument(message, code);
        }
        if (code.startsWith("28")) {
            return new Denied(message, code);
        }
        return KINDS.getOrDefault(code, DlockException::new).apply(message, code);
    }

    /** The server is there, but accepts nobody: full, starting or shutting down. */
    boolean isTurnedAway() {
        return sqlState != null && sqlState.matches("(53300|57P0).*");
    }

    /** Another client holds the lock, and the wait is over. */
    public static final class Busy extends DlockException {
        private static final long serialVersionUID = 1;

        Busy(String message) {
            super(message, null);
        }
    }

    /** The lock was held and is not any more.  Do not continue; do not repeat with this version. */
    public static final class Lost extends DlockException {
        private static final long serialVersionUID = 1;

        Lost(String message, String sqlState) {
            super(message, sqlState);
        }
    }

    /** A holder of a lower priority did not yield in time (55P03). */
    public static final class Refused extends DlockException {
        private static final long serialVersionUID = 1;

        Refused(String message, String sqlState) {
            super(message, sqlState);
        }
    }

    /** Requests wait for each other (40P01). */
    public static final class Deadlock extends DlockException {
        private static final long serialVersionUID = 1;

        Deadlock(String message, String sqlState) {
            super(message, sqlState);
        }
    }

    /** A missing privilege, or a policy (42501). */
    public static final class Denied extends DlockException {
        private static final long serialVersionUID = 1;

        Denied(String message, String sqlState) {
            super(message, sqlState);
        }
    }

    /** The extension is missing, too old or not preloaded, or it lacks a feature. */
    public static final class NotReady extends DlockException {
        private static final long serialVersionUID = 1;

        NotReady(String message, String sqlState) {
            super(message, sqlState);
        }
    }

    /** The server rejected an argument (22xxx), or the client did. */
    public static final class InvalidArgument extends DlockException {
        private static final long serialVersionUID = 1;

        InvalidArgument(String message) {
            super(message, null);
        }

        InvalidArgument(String message, String sqlState) {
            super(message, sqlState);
        }
    }

    /** No answer: it is unknown whether the statement took effect. */
    public static final class Unreachable extends DlockException {
        private static final long serialVersionUID = 1;

        Unreachable(String message, String sqlState) {
            super(message, sqlState);
        }
    }
}
