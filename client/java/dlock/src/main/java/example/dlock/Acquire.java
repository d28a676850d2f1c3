package example.dlock;

import static example.dlock.Protocol.NEVER;
import static example.dlock.Protocol.clock;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Collectors;

/**
 * A request for a lock.
 *
 * <pre>
 * TRY -> granted
 *  |
 * busy -> ENQUEUE -> WAIT -> CLAIM -> granted, or missed
 *                     ^--------'
 * ... and from the beginning if the server does not know the ticket any more.
 * </pre>
 */
final class Acquire extends Request {
    private final List<String> keys;
    private final Options options;
    private final double ttl;
    private final String owner = Protocol.newOwner();
    private boolean inDoubt;
    private boolean inQueue;
    private boolean mayTry; // the wait was missed, and a try shall say why
    private double lateSince = NEVER; // grants are over before we hear of them

    Acquire(Core core, Keeper keeper, boolean interruptible, List<String> keys, Options options) {
        super(core, keeper, interruptible, Protocol.seconds(options.wait));
        this.keys = keys;
        this.options = options;
        this.ttl = Protocol.seconds(options.ttl);
    }

    Grant run() throws InterruptedException {
        return run(Acquire::steps);
    }

    private static Grant steps(Acquire me) throws InterruptedException {
        boolean done = false;
        try {
            Grant grant = me.keys.size() == 1 ? me.one() : me.all();
            done = true;
            me.tell(Event.Kind.GRANTED, grant.holds.get(0).version);
            return grant;
        } catch (DlockException.Busy e) {
            me.tell(Event.Kind.BUSY, 0);
            throw e;
        } finally {
            // also if the caller was interrupted
            if (!done && (me.inDoubt || me.inQueue)) {
                me.core.abandon(me.keys, me.owner, me.inQueue, me.ttl);
            }
        }
    }

    private void tell(Event.Kind kind, long version) {
        core.emit(new Event(kind, keys.get(0), version, Protocol.duration(clock() - began), ""));
    }

    private DlockException.Busy busy() {
        return new DlockException.Busy(keys.stream().collect(Collectors.joining("\", \"", "lock \"", "\"")) + " is held by another client");
    }

    /**
     * It counts as ours only if we know when the lease started.  Null: begin again.  A hold that was to end before the
     * answer came has ended.
     */
    private Grant granted(List<Long> versions, double sentAt, double lasts) throws InterruptedException {
        double since = sentAt;
        double left = lasts;
        double took = clock() - sentAt;
        if (took > Protocol.CONFIRM * ttl && took < Protocol.seconds(options.maxHold)) {
            for (int i = 0; i < keys.size(); i++) {
                Keeper.Answer answer = ask(Sql.REFRESH, keys.get(i), versions.get(i), owner, null, null, null);
                if (answer.one() == null) {
                    lateSince = Math.min(lateSince, clock());
                    if (clock() >= lateSince + core.timeout) {
                        throw new DlockException.Unreachable("the server takes longer to answer than the TTL", null);
                    }
                    return null;
                }
                since = i == 0 ? answer.sentAt() : since;
                left = Math.min(i == 0 ? NEVER : left, ((Number) answer.one()).doubleValue() / 1000);
            }
        }
        Grant grant = core.add(keys, owner, versions, options, since, left);
        inDoubt = false;
        inQueue = false;
        return grant;
    }

    private Grant one() throws InterruptedException {
        String key = keys.get(0);
        String value = options.value == null ? "" : options.value;
        boolean tickets = core.hasTickets && value.getBytes(StandardCharsets.UTF_8).length <= Protocol.MAX_TICKET_BYTES;
        boolean missed = false;
        while (true) {
            // a try with a priority would not give the holder the time to yield
            if (options.priority == 0 || !tickets || clock() >= waitUntil) {
                inDoubt = true;
                Keeper.Answer answer = ask(Sql.TRY, options.terms(key, options.ttl, owner));
                if (answer.one() != null) {
                    Grant grant = granted(List.of(((Number) answer.one()).longValue()), answer.sentAt(), NEVER);
                    if (grant != null) {
                        return grant;
                    }
                    continue;
                }
                inDoubt = unanswered; // the holder may be our own first try
                lateSince = NEVER;
            }
            double left = waitUntil - clock();
            if (left <= 0) {
                throw busy();
            }
            if (!tickets) {
                pause(Math.min(Protocol.jitter(Protocol.POLL), left));
                continue;
            }
            long ticket;
            try {
                inQueue = true;
                Duration claim = min(options.ttl, Protocol.CLAIM_TTL);
                claim = claim.compareTo(options.atLeast) < 0 ? options.atLeast : claim;
                String wait = left == NEVER ? null : Protocol.interval(Protocol.duration(left));
                ticket = ((Number) ask(Sql.ENQUEUE, options.terms(key, claim, owner, wait)).one()).longValue();
            } catch (DlockException e) {
                inQueue = e instanceof DlockException.Unreachable;
                if (!"53400".equals(e.sqlState()) || clock() >= waitUntil) {
                    throw e;
                }
                pause(Math.min(Protocol.POLL, waitUntil - clock())); // there is no room for a ticket now
                continue;
            }
            Grant grant = wait(key, ticket);
            if (grant != null) {
                return grant;
            }
            if (mayTry && missed) {
                throw new DlockException.Deadlock("deadlock detected while waiting for lock \"" + key + "\"", "40P01");
            }
            missed = missed || mayTry;
        }
    }

    private static Duration min(Duration one, Duration other) {
        return one.compareTo(other) < 0 ? one : other;
    }

    /** A grant; null: begin again, because the ticket is unknown or its grant was lost, or mayTry. */
    private Grant wait(String key, long ticket) throws InterruptedException {
        mayTry = false;
        Core.Wait wait = core.addWait(ticket);
        core.wakeKeeper.run();
        double asked = clock();
        try {
            while (true) {
                double silentAt = Math.max(asked, core.aliveAt) + core.timeout;
                boolean wasHeard = await(wait.event, Math.max(Math.min(waitUntil, silentAt) - clock(), 0.05));
                core.checkUsable();
                if (!wasHeard && clock() < waitUntil) {
                    if (clock() >= Math.max(asked, core.aliveAt) + core.timeout) {
                        throw new DlockException.Unreachable("no answer from a server in " + core.timeout + " s", null);
                    }
                    continue;
                }
                Keeper.Answer answer = ask(Sql.CLAIM, key, ticket, owner, Protocol.interval(options.ttl));
                asked = clock();
                Object[] row = answer.rows().get(0);
                String state = (String) row[0];
                if (state == null) {
                    return null; // the server was restarted, or it is another one
                } else if (state.equals("granted")) {
                    Grant grant = row[2] == null ? null : granted(List.of(((Number) row[1]).longValue()),
                            answer.sentAt(), ((Number) row[2]).doubleValue() / 1000);
                    inQueue = false;
                    return grant;
                } else if (state.equals("missed")) {
                    inQueue = false;
                    missed(key, wait);
                    return null;
                } else if (asked >= waitUntil + Protocol.OVERDUE) {
                    if (Boolean.TRUE.equals(ask(Sql.DEQUEUE, ticket).one())) {
                        inQueue = false;
                        throw busy();
                    }
                } else if (wasHeard) {
                    pause(Protocol.POLL); // a false event is not acted upon for a while
                }
            }
        } finally {
            core.removeWait(ticket);
        }
    }

    /** The server says that the wait is over.  The event says why, but need not have come. */
    private void missed(String key, Core.Wait wait) {
        if (wait.missed != null) {
            throw wait.missed;
        }
        if (options.priority > 0 && !wait.saidMissed) {
            throw new DlockException.Refused("the holder of lock \"" + key + "\" did not yield", "55P03");
        }
        if (wait.saidMissed || clock() >= waitUntil) {
            throw busy();
        }
        mayTry = true;
    }

    /** Several keys have no ticket: polite polling, without a place in the queue. */
    private Grant all() throws InterruptedException {
        Integer[] slots = new Integer[keys.size()];
        Boolean[] shared = new Boolean[keys.size()];
        Arrays.fill(slots, options.slots);
        Arrays.fill(shared, options.shared);
        double pause = Protocol.BACKOFF_FIRST;
        while (true) {
            inDoubt = true;
            Keeper.Answer answer = ask(Sql.TRY_ALL, keys.toArray(String[]::new), Protocol.interval(options.ttl), owner,
                    options.value, options.priority, slots, shared);
            if (answer.one() != null) {
                List<Long> versions = Arrays.stream((Object[]) answer.one()).map(v -> ((Number) v).longValue()).toList();
                Grant grant = granted(versions, answer.sentAt(), NEVER);
                if (grant != null) {
                    return grant;
                }
                continue;
            }
            inDoubt = unanswered;
            lateSince = NEVER;
            double left = waitUntil - clock();
            if (left <= 0) {
                throw busy();
            }
            pause(Math.min(Protocol.jitter(pause), left));
            pause = Math.min(2 * pause, Protocol.POLL);
        }
    }
}
