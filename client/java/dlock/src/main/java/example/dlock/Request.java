package example.dlock;

import static example.dlock.Protocol.clock;

import java.util.List;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;

/** One statement, or several, asked until there is an answer. */
class Request {
    /** What a request does. */
    interface Steps<T, R extends Request> {
        T of(R request) throws InterruptedException;
    }

    final Core core;
    final double began = clock();
    final double waitUntil;
    boolean unanswered; // a statement may have taken effect unheard
    private final Keeper keeper;
    private final boolean interruptible;
    private boolean interrupted;
    private double alive = began;

    Request(Core core, Keeper keeper, boolean interruptible, double wait) {
        this.core = core;
        this.keeper = keeper;
        this.interruptible = interruptible;
        this.waitUntil = began + wait;
    }

    /** Take the steps of a request that ignores interrupts until it has ended. */
    static <T> T run(Core core, Keeper keeper, double wait, Steps<T, Request> steps) {
        try {
            return new Request(core, keeper, false, wait).run(steps);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e); // not without interruptible
        }
    }

    @SuppressWarnings("unchecked")
    <T, R extends Request> T run(Steps<T, R> steps) throws InterruptedException {
        core.checkUsable();
        try {
            if (!core.knowsServer) {
                core.learn(sql -> ask(sql).rows());
            }
            return steps.of((R) this);
        } catch (DlockException.NotReady e) {
            core.knowsServer = false; // look for the extension again
            throw e;
        } finally {
            core.deliver();
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    /**
     * Ask again after no answer: the same owner gets the same grant.  The server may be silent for the timeout; one
     * that turns us away is not silent, as long as the wait lasts.
     */
    Keeper.Answer ask(Sql sql, Object... params) throws InterruptedException {
        double pause = Protocol.BACKOFF_FIRST;
        while (true) {
            try (Source.Session session = keeper.source.borrow()) {
                Keeper.Answer answer = keeper.ask(session, core.timeout, sql, params);
                alive = clock();
                return answer;
            } catch (DlockException.Unreachable e) {
                double now = clock();
                unanswered = true;
                if (e.isTurnedAway() && now < waitUntil) {
                    alive = now;
                }
                if (now + pause >= alive + core.timeout || core.closed) {
                    throw e;
                }
                pause(Protocol.jitter(pause));
                pause = Math.min(2 * pause, Protocol.BACKOFF_LAST);
            }
        }
    }

    void pause(double seconds) throws InterruptedException {
        await(new Semaphore(0), seconds);
    }

    /** Wait for an event; was there one? */
    boolean await(Semaphore event, double seconds) throws InterruptedException {
        double until = clock() + seconds;
        while (true) {
            try {
                boolean was = event.tryAcquire((long) Math.min((until - clock()) * 1e9, Long.MAX_VALUE), TimeUnit.NANOSECONDS);
                event.drainPermits();
                return was;
            } catch (InterruptedException e) {
                if (interruptible) {
                    throw e;
                }
                interrupted = true;
            }
        }
    }

    // What the other requests are

    /** Stop the renewal, then release.  A grant that is not there was lost, unless an earlier release got no answer. */
    static void release(Core core, Keeper keeper, Grant grant) {
        boolean wasHeld = grant.isHeld(clock());
        List<Hold> holds = grant.holds;
        core.drop(grant);
        try {
            if (!wasHeld) {
                core.deliver();
                throw grant.error();
            }
            run(core, keeper, 0, request -> {
                List<Object[]> rows = request.ask(Sql.RELEASE, Core.keysOf(holds), Core.versionsOf(holds), Core.ownersOf(holds)).rows();
                for (int i = 0; i < rows.size(); i++) {
                    Hold hold = holds.get(i);
                    String said = (String) rows.get(i)[0];
                    if (said.equals("released") || request.unanswered) {
                        core.tell(Event.Kind.RELEASED, hold, 0, "");
                    } else {
                        hold.state = Hold.State.HELD;
                        hold.gone(said);
                    }
                }
                return null;
            });
        } catch (DlockException.Unreachable | DlockException.Lost e) {
            for (Hold hold : holds) {
                core.abandon(List.of(hold.key), hold.owner, false, hold.ttl);
            }
            throw e;
        }
        if (holds.stream().anyMatch(hold -> hold.state == Hold.State.LOST)) {
            throw grant.error();
        }
    }

    /** Renew with something new: a value, a TTL, or how long the key stays busy at least. */
    static void refresh(Core core, Keeper keeper, Hold hold, String value, java.time.Duration ttl, java.time.Duration atLeast) {
        run(core, keeper, 0, request -> {
            Keeper.Answer answer = request.ask(Sql.REFRESH, hold.key, hold.version, hold.owner, value,
                    Protocol.interval(ttl), Protocol.interval(atLeast));
            synchronized (core) {
                if (answer.one() == null) {
                    hold.gone("not_held");
                } else if (hold.isHeld(clock())) {
                    if (ttl != null) {
                        hold.extend(Protocol.seconds(ttl));
                    }
                    hold.renewed(answer.sentAt(), ((Number) answer.one()).doubleValue() / 1000);
                }
            }
            return null;
        });
        if (!hold.isHeld(clock())) {
            throw hold.grant.error();
        }
    }

    static double limit(Request request, String key, int n, java.time.Duration per, int priority) throws InterruptedException {
        while (true) {
            Object said = request.ask(Sql.LIMIT, key, n, Protocol.interval(per), priority).one();
            double left = ((Number) said).doubleValue() / 1000;
            if (left <= 0 || clock() + left > request.waitUntil) {
                return left;
            }
            request.pause(left);
        }
    }

    static Leader look(Request request, String key) throws InterruptedException {
        for (Object[] row : request.ask(Sql.GET, key).rows()) {
            if (List.of("held", "preempting", "lapsed").contains((String) row[3])) {
                return new Leader(((Number) row[0]).longValue(), (String) row[1], (String) row[2]);
            }
        }
        return null;
    }
}
