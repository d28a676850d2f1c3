package example.dlock;

import static example.dlock.Protocol.NEVER;
import static example.dlock.Protocol.clock;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Semaphore;
import java.util.function.BiConsumer;
import java.util.function.Consumer;
import java.util.function.DoubleConsumer;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The state of locks and requests, and the decisions about them.  Nothing here blocks or talks to a server: the keeper
 * sends what plan() says, the watch calls expire().  The monitor protects all; the program is never called back with it.
 */
final class Core {
    private static final System.Logger LOG = System.getLogger("dlock");
    // within a JSON text quotes are escaped, so no key can say what only an event says
    private static final Pattern KIND = Pattern.compile("\"event\"\\s*:\\s*\"(\\w+)\"");
    private static final Pattern TICKET = Pattern.compile("\"ticket\"\\s*:\\s*(\\d{1,18})\\b");
    private static final Pattern VERSION = Pattern.compile("\"version\"\\s*:\\s*(\\d{1,18})\\b");
    private static final Pattern CODE = Pattern.compile("\"code\"\\s*:\\s*\"(\\w+)\"");
    private static final Pattern REASON = Pattern.compile("\"reason\"\\s*:\\s*\"([^\"\\\\]*)\"");

    /** A request that waits by ticket. */
    static final class Wait {
        final Semaphore event = new Semaphore(0);
        volatile boolean saidMissed;
        volatile DlockException missed;
    }

    /** A request that ended without an answer: it may have been granted, or still be queued. */
    private static final class Abandoned {
        final String key;
        final String owner;
        final boolean inQueue;
        final double until;
        double due;
        double pause = Protocol.ABANDON_PAUSE;

        Abandoned(String key, String owner, boolean inQueue, double ttl) {
            this.key = key;
            this.owner = owner;
            this.inQueue = inQueue;
            this.due = clock();
            this.until = due + Math.min(ttl, Protocol.ABANDON_LAST);
        }
    }

    /** What the keeper sends, and what to do with the rows and the time of the question, or with an error. */
    record Question(Sql sql, Object[] params, double timeout, BiConsumer<List<Object[]>, Double> answered,
            Consumer<DlockException> failed) {}

    private record Told(Event event, Grant grant) {}

    final double timeout;
    private final Consumer<Event> onEvent;
    private final String schemaGiven;
    volatile String schema;
    volatile boolean hasTickets;
    volatile boolean knowsServer;
    volatile boolean closed;
    volatile double aliveAt; // the keeper's last answer
    /** Wake the keeper; wake who sleeps beyond that time. */
    Runnable wakeKeeper = () -> {};
    DoubleConsumer wakeBy = at -> {};

    private final Set<Hold> holds = new HashSet<>();
    private final Map<Long, Wait> waits = new HashMap<>();
    private final Set<Long> early = new LinkedHashSet<>();
    private final List<Abandoned> abandoned = new ArrayList<>();
    private final Queue<Told> told = new ConcurrentLinkedQueue<>();
    private boolean listens;
    private double askedAt;
    private double hearAt;

    Core(double timeout, String schema, Consumer<Event> onEvent) {
        this.timeout = timeout;
        this.schemaGiven = schema;
        this.schema = schema == null ? "" : schema;
        this.onEvent = onEvent;
    }

    // Telling

    void tell(Event.Kind kind, Hold hold, double seconds, String reason) {
        told.add(new Told(new Event(kind, hold.key, hold.version, Protocol.duration(seconds), reason), hold.grant));
    }

    /** Call back the program, without the monitor. */
    void deliver() {
        for (Told next = told.poll(); next != null; next = told.poll()) {
            Event event = next.event;
            if (event.kind() == Event.Kind.LOST) {
                next.grant.lost.complete(event.reason());
            } else if (event.kind() == Event.Kind.ASKED) {
                next.grant.asked.complete(event.reason());
            }
            emit(event);
        }
    }

    void emit(Event event) {
        try {
            onEvent.accept(event);
        } catch (RuntimeException e) {
            LOG.log(System.Logger.Level.ERROR, "onEvent failed", e);
        }
    }

    // Holds

    void checkUsable() {
        if (closed) {
            throw new DlockException.InvalidArgument("these Locks are closed");
        }
    }

    synchronized Grant add(List<String> keys, String owner, List<Long> versions, Options options, double sentAt, double lasts) {
        checkUsable(); // the grant of a request that close() did not see ends by its TTL
        Grant grant = new Grant();
        List<Hold> all = new ArrayList<>();
        for (int i = 0; i < keys.size(); i++) {
            Hold hold = new Hold(this, grant, keys.get(i), owner, versions.get(i), options);
            hold.renewed(sentAt, lasts);
            all.add(hold);
        }
        grant.holds = List.copyOf(all);
        holds.addAll(all);
        wakeBy.accept(all.get(0).due);
        return grant;
    }

    /** It is not renewed any more: released, or nobody has it.  Was any of it held? */
    synchronized boolean drop(Grant grant) {
        boolean any = false;
        for (Hold hold : grant.holds) {
            holds.remove(hold);
            if (hold.state == Hold.State.HELD) {
                hold.state = Hold.State.RELEASED;
                any = true;
            }
        }
        return any;
    }

    /** Find what is lost or in danger by now; when to look again. */
    synchronized double expire(double now) {
        double soon = NEVER;
        for (Hold hold : List.copyOf(holds)) {
            if (now >= hold.deadline) {
                hold.lose("deadline");
            }
            if (hold.state != Hold.State.HELD) {
                holds.remove(hold);
                continue;
            }
            if (now >= hold.dangerAt) {
                hold.dangerAt = NEVER;
                tell(Event.Kind.DANGER, hold, hold.deadline - now, "");
            }
            double last = hold.ends - Protocol.LEASE * hold.ttl;
            if (hold.renews && now >= last) {
                hold.renews = false;
                hold.dangerAt = NEVER;
                ask(hold, hold.deadline, "max_hold", now);
            }
            soon = Math.min(soon, Math.min(Math.min(hold.deadline, hold.dangerAt), hold.renews ? last : NEVER));
        }
        return soon;
    }

    /** The holder is asked to finish and to release. */
    private void ask(Hold hold, double until, String why, double now) {
        hold.grant.askedUntil = until;
        tell(Event.Kind.ASKED, hold, until - now, why);
    }

    synchronized void close() {
        closed = true;
        holds.forEach(hold -> hold.lose("closed"));
        holds.clear();
        waits.values().forEach(wait -> wait.event.release());
    }

    // Waits

    synchronized Wait addWait(long ticket) {
        checkUsable();
        Wait wait = new Wait();
        waits.put(ticket, wait);
        if (early.contains(ticket)) {
            wait.event.release();
        }
        return wait;
    }

    synchronized void removeWait(long ticket) {
        waits.remove(ticket);
    }

    // The keeper

    /** From when on the keeper needs a connection. */
    synchronized double needsAt() {
        return !waits.isEmpty() || !abandoned.isEmpty() ? 0
                : holds.stream().mapToDouble(hold -> hold.since + Protocol.SHORT).min().orElse(NEVER);
    }

    synchronized boolean isIdle() {
        return holds.isEmpty() && waits.isEmpty() && abandoned.isEmpty();
    }

    /** The keeper has a new connection: what was told meanwhile was missed. */
    synchronized void connected(boolean nowListens) {
        listens = nowListens;
        askedAt = 0;
        if (listens) {
            holds.forEach(hold -> hold.heard = true);
        }
    }

    private static String find(Pattern pattern, String payload) {
        Matcher found = pattern.matcher(payload);
        return found.find() ? found.group(1) : null;
    }

    /** Every role may send on the channel, so an event only leads to a question. */
    synchronized void hear(String payload) {
        String kind = find(KIND, payload);
        String ticket = find(TICKET, payload);
        String version = find(VERSION, payload);
        if (kind == null) {
            return;
        }
        if (ticket != null && (kind.equals("granted") || kind.equals("missed"))) {
            Wait wait = waits.get(Long.valueOf(ticket));
            if (wait == null) {
                early.add(Long.valueOf(ticket));
                if (early.size() > Protocol.MAX_EARLY) {
                    early.remove(early.iterator().next());
                }
                return;
            }
            if (kind.equals("missed")) {
                String code = find(CODE, payload);
                wait.missed = code == null ? null : DlockException.of(code, find(REASON, payload));
                wait.saidMissed = true;
            }
            wait.event.release();
        } else if (version != null && (kind.equals("preempt") || kind.equals("expired") || kind.equals("forced"))) {
            for (Hold hold : holds) {
                if (hold.version == Long.parseLong(version)) {
                    hold.heard = true;
                    hold.forced = hold.forced || kind.equals("forced");
                }
            }
        }
    }

    /** What the keeper sends now; null: nothing. */
    synchronized Question plan(double now) {
        Question question = renewal(now);
        if (question == null) {
            question = tickets(now);
        }
        return question != null ? question : giveback(now);
    }

    /** When to plan again, if nothing happens. */
    synchronized double nextAt() {
        double at = NEVER;
        for (Abandoned one : abandoned) {
            at = Math.min(at, one.due);
        }
        if (!waits.isEmpty()) {
            at = Math.min(at, askedAt + ticketPause());
        }
        for (Hold hold : holds) {
            at = Math.min(at, hold.heard ? Math.min(hold.due, hearAt) : hold.due);
        }
        return at;
    }

    /**
     * One statement for all that are due, and for those that events have named.  Locks of a statement that failed
     * follow one by one.
     */
    private Question renewal(double now) {
        boolean hears = now >= hearAt;
        List<Hold> ripe = holds.stream().filter(hold -> hold.due <= now || (hold.heard && hears)).toList();
        if (ripe.isEmpty()) {
            return null;
        }
        List<Hold> batch = ripe.stream().allMatch(hold -> hold.alone)
                ? List.of(ripe.stream().min(Comparator.comparingDouble(hold -> hold.deadline)).orElseThrow())
                : holds.stream().filter(hold -> !hold.alone && (isNear(hold, now) || (hold.heard && hears)))
                        .limit(Protocol.MAX_BATCH).toList();
        List<Hold> heard = batch.stream().filter(hold -> hold.heard).toList();
        if (!heard.isEmpty()) {
            hearAt = Math.max(hearAt, now - Protocol.HEAR_PAUSE * (Protocol.HEAR_BURST - 1)) + Protocol.HEAR_PAUSE;
        }
        heard.forEach(hold -> hold.heard = false);
        Boolean[] renew = batch.stream().map(hold -> hold.renews && isNear(hold, now)).toArray(Boolean[]::new);
        double shortest = batch.stream().mapToDouble(hold -> hold.ttl).min().orElseThrow();
        double patience = Math.max(Protocol.ANSWER * shortest, 0.02);
        Object[] params = {keysOf(batch), versionsOf(batch), ownersOf(batch), renew, Math.max((int) (patience * 333), 1) + "ms"};
        return new Question(Sql.RENEW, params, patience,
                (rows, sentAt) -> renewed(batch, renew, rows, sentAt), error -> refused(batch, heard, error));
    }

    private static boolean isNear(Hold hold, double now) {
        return hold.due <= now + Protocol.TOGETHER * hold.ttl;
    }

    private synchronized void refused(List<Hold> batch, List<Hold> heard, DlockException error) {
        heard.forEach(hold -> hold.heard = true);
        if (error instanceof DlockException.Unreachable) {
            return;
        }
        // the server is there but refused it, perhaps because of one of them
        for (Hold hold : batch) {
            if (hold.alone || batch.size() == 1) {
                hold.due = clock() + Protocol.REFUSED * hold.ttl;
            }
            hold.alone = true;
        }
    }

    synchronized void renewed(List<Hold> batch, Boolean[] renew, List<Object[]> rows, double sentAt) {
        double now = clock();
        for (Object[] row : rows) {
            int i = ((Number) row[0]).intValue() - 1;
            Hold hold = batch.get(i);
            Number lasts = (Number) row[1];
            String said = (String) row[2];
            boolean yields = said.equals("preempting");
            if (hold.state != Hold.State.HELD || now >= hold.deadline) {
                continue; // a lost lock never comes back
            }
            hold.alone = false;
            if ((!said.equals("held") && !yields) || (renew[i] && lasts == null)) {
                hold.gone(said);
                continue;
            }
            if (!hold.heard) {
                hold.forced = false;
            }
            if (renew[i]) {
                hold.renewed(sentAt, lasts.doubleValue() / 1000);
                tell(Event.Kind.RENEWED, hold, 0, "");
            } else if (hold.due <= now) {
                hold.due = sentAt + Protocol.PERIOD * hold.ttl;
            }
            if (yields && !hold.asked) {
                double left = row[3] == null ? 0 : Math.max(((Number) row[3]).doubleValue(), 0) / 1000;
                ask(hold, now + left, "priority", now);
            }
            hold.asked = yields;
        }
    }

    private double ticketPause() {
        return listens ? timeout / 2 : Protocol.POLL;
    }

    /** One question for all requests that wait. */
    private Question tickets(double now) {
        if (waits.isEmpty() || now < askedAt + ticketPause()) {
            return null;
        }
        askedAt = now;
        Object[] params = {waits.keySet().stream().limit(Protocol.MAX_BATCH).toArray(Long[]::new)};
        return new Question(Sql.TICKETS, params, timeout, (rows, sentAt) -> {
            synchronized (this) {
                for (Object[] row : rows) {
                    Wait wait = waits.get(((Number) row[0]).longValue());
                    if (wait != null) {
                        wait.event.release();
                    }
                }
            }
        }, error -> {});
    }

    void abandon(Collection<String> keys, String owner, boolean inQueue, double ttl) {
        synchronized (this) {
            keys.forEach(key -> abandoned.add(new Abandoned(key, owner, inQueue, ttl)));
        }
        wakeKeeper.run();
    }

    /**
     * Release by owner what may have been granted unheard.  If nothing was there, its request may be slower than our
     * release, so it is tried again later.
     */
    private Question giveback(double now) {
        abandoned.removeIf(one -> now >= one.until);
        List<Abandoned> due = abandoned.stream().filter(one -> now >= one.due).limit(Protocol.MAX_BATCH).toList();
        if (due.isEmpty()) {
            return null;
        }
        for (Abandoned one : due) {
            one.due = now + one.pause;
            one.pause *= 2;
        }
        Object[] params = {due.stream().map(one -> one.key).toArray(String[]::new),
            due.stream().map(one -> one.owner).toArray(String[]::new),
            due.stream().map(one -> one.inQueue).toArray(Boolean[]::new)};
        return new Question(hasTickets ? Sql.ABANDON : Sql.ABANDON_PORTABLE, params, timeout, (rows, sentAt) -> {
            synchronized (this) {
                for (int i = 0; i < rows.size(); i++) {
                    if ("released".equals(rows.get(i)[0])) {
                        abandoned.remove(due.get(i));
                    }
                }
            }
        }, error -> {});
    }

    static String[] keysOf(List<Hold> holds) {
        return holds.stream().map(hold -> hold.key).toArray(String[]::new);
    }

    static Long[] versionsOf(List<Hold> holds) {
        return holds.stream().map(hold -> hold.version).toArray(Long[]::new);
    }

    static String[] ownersOf(List<Hold> holds) {
        return holds.stream().map(hold -> hold.owner).toArray(String[]::new);
    }

    // What the server has

    /** Asks a question without parameters. */
    interface Asking {
        List<Object[]> ask(Sql sql) throws InterruptedException;
    }

    /** Learn the schema and the features; returns the process that answered. */
    int learn(Asking asking) throws InterruptedException {
        Object[] hello = asking.ask(Sql.HELLO).get(0);
        if (schemaGiven == null && hello[1] == null) {
            throw new DlockException.NotReady("the database has no extension dlock: CREATE EXTENSION dlock, or name the "
                    + "schema of the portable edition (schema())", null);
        }
        schema = schemaGiven != null ? schemaGiven : (String) hello[1];
        try {
            hasTickets = Arrays.asList((Object[]) asking.ask(Sql.FEATURES).get(0)[2]).contains("tickets");
        } catch (DlockException.NotReady e) {
            if (!"42883".equals(e.sqlState())) {
                throw e;
            }
            throw new DlockException.NotReady("this client needs a dlock with dlock_features(): update the server's package, "
                    + "then ALTER EXTENSION dlock UPDATE", e.sqlState());
        }
        knowsServer = true;
        return ((Number) hello[0]).intValue();
    }
}
