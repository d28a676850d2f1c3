package example.dlock;

import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.stream.Collectors;

/**
 * The holds of one request: one for each key.  The keeper knows grants and not Lease objects, so a Lease that nobody
 * has any more is collected, and its renewal ends.
 */
final class Grant {
    final CompletableFuture<String> lost = new CompletableFuture<>();
    final CompletableFuture<String> asked = new CompletableFuture<>();
    List<Hold> holds;
    volatile double askedUntil = Protocol.NEVER;

    boolean isHeld(double now) {
        return holds.stream().allMatch(hold -> hold.isHeld(now));
    }

    DlockException.Lost error() {
        double now = Protocol.clock();
        String names = holds.stream().filter(hold -> !hold.isHeld(now))
                .map(hold -> "\"" + hold.key + "\" (" + (hold.reason.isEmpty() ? "deadline" : hold.reason) + ")")
                .collect(Collectors.joining(", "));
        return new DlockException.Lost("lock " + names + (names.isEmpty() ? "" : " ") + "is lost", null);
    }
}
