package example.dlock;

import static example.dlock.Protocol.NEVER;
import static example.dlock.Protocol.clock;

import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;

/**
 * Two threads look after all locks of a Locks object: the keeper talks to the server on a connection of its own; the
 * watch never does, so it tells a loss in time and ends statements that get no answer.  Both start when they are
 * needed.  They know the core and the source and not Locks, so one that nobody has any more is collected, and they end.
 */
final class Keeper implements Runnable {
    private static final System.Logger LOG = System.getLogger("dlock");

    /** A statement under way. */
    private static final class Call {
        final double until;
        final Source.Session session;
        CompletableFuture<Void> abort;

        Call(double until, Source.Session session) {
            this.until = until;
            this.session = session;
        }
    }

    /** The answer to a statement, and when it was sent. */
    record Answer(List<Object[]> rows, double sentAt) {
        Object one() {
            return rows.get(0)[0];
        }
    }

    final Source source;
    private final Core core;
    private final ReentrantLock mutex = new ReentrantLock(); // of what follows
    private final Condition watchWakes = mutex.newCondition();
    private final Condition keeperWakes = mutex.newCondition();
    private final Set<Call> calls = new LinkedHashSet<>();
    private final List<Thread> threads = new ArrayList<>();
    private double sleepsUntil; // the watch
    private volatile double restsUntil; // the keeper, if it has a connection or wants one
    private boolean stopping;
    private volatile boolean rung;
    private volatile boolean rests; // the keeper waits for the first lock that is not short
    private Source.Session own; // of the keeper, as what follows
    private volatile double retryAt;

    Keeper(Core core, Source source) {
        this.core = core;
        this.source = source;
        core.wakeKeeper = this::ring;
        core.wakeBy = this::wakeBy;
    }

    private void start() {
        if (threads.isEmpty() && !stopping) {
            threads.add(new Thread(this::watch, "dlock-watch"));
            threads.add(new Thread(this::keep, "dlock-keeper"));
            for (Thread thread : threads) {
                thread.setDaemon(true);
                thread.start();
            }
        }
    }

    private void ring() {
        mutex.lock();
        try {
            start();
            rung = true;
            keeperWakes.signal();
        } finally {
            mutex.unlock();
        }
    }

    /**
     * The watch sleeps a second at most, so only what is sooner wakes it: a lock that is released soon wakes neither the
     * watch nor the keeper.
     */
    private void lookAt(double at) {
        mutex.lock();
        try {
            start();
            if (at < sleepsUntil) {
                watchWakes.signal();
            }
        } finally {
            mutex.unlock();
        }
    }

    /** There is a new lock, which is to be renewed then. */
    private void wakeBy(double at) {
        lookAt(at);
        if (at < restsUntil) {
            ring();
        }
    }

    /** Stop both threads; what is held is told lost. */
    @Override
    public void run() {
        core.close();
        List<Thread> running;
        mutex.lock();
        try {
            stopping = true;
            running = List.copyOf(threads);
            calls.forEach(this::abort);
            watchWakes.signal();
        } finally {
            mutex.unlock();
        }
        ring();
        core.deliver();
        for (Thread thread : running) {
            try {
                if (thread != Thread.currentThread()) {
                    thread.join(2000);
                }
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                return;
            }
        }
    }

    /** Not by this thread, as closing a connection can take its time. */
    private void abort(Call call) {
        if (call.abort == null) {
            call.abort = CompletableFuture.runAsync(call.session::abort, task -> {
                Thread thread = new Thread(task, "dlock-abort");
                thread.setDaemon(true);
                thread.start();
            });
        }
    }

    /** One statement, which the watch ends if it gets no answer in time. */
    Answer ask(Source.Session session, double timeout, Sql sql, Object... params) {
        double sentAt = clock();
        Call call = new Call(sentAt + timeout, session);
        mutex.lock();
        try {
            calls.add(call);
        } finally {
            mutex.unlock();
        }
        lookAt(call.until);
        DlockException failure = null;
        List<Object[]> rows = List.of();
        try {
            rows = session.query(sql, core.schema, params);
        } catch (DlockException e) {
            failure = e;
        } finally {
            mutex.lock();
            try {
                calls.remove(call);
            } finally {
                mutex.unlock();
            }
            if (call.abort != null) {
                call.abort.join(); // before the pool lends the connection to somebody else
            }
        }
        if (failure != null) {
            throw call.abort == null ? failure : new DlockException.Unreachable("no answer from the server in time", null);
        }
        return new Answer(rows, sentAt);
    }

    private void watch() {
        int idle = 0;
        while (true) {
            double now = clock();
            double at = core.expire(now);
            core.deliver();
            if (rests) {
                double needed = Math.max(core.needsAt(), retryAt);
                at = Math.min(at, Math.max(needed, now + 0.02));
                if (now >= needed) {
                    ring();
                }
            }
            mutex.lock();
            try {
                if (stopping) {
                    return;
                }
                for (Call call : calls) {
                    if (now >= call.until) {
                        abort(call);
                    }
                    at = Math.min(at, Math.max(call.until, now + 0.05));
                }
                // an idle watch sleeps until it is woken, but not after each short call
                idle = at < NEVER ? 0 : idle + 1;
                if (idle > 10) {
                    sleepsUntil = NEVER;
                    watchWakes.await();
                } else {
                    sleepsUntil = Math.min(at, now + Protocol.TICK);
                    watchWakes.awaitNanos((long) ((sleepsUntil - clock()) * 1e9));
                }
            } catch (InterruptedException e) {
                continue; // nobody has this thread
            } finally {
                mutex.unlock();
            }
        }
    }

    /** Send what is to be sent, on a connection of its own, which is opened when something needs it. */
    private void keep() {
        boolean listens = false;
        double pause = Protocol.BACKOFF_FIRST;
        double busyAt = 0;
        while (!core.closed) {
            try {
                double now = clock();
                if (own == null && now >= Math.max(core.needsAt(), retryAt)) {
                    own = source.open();
                    int pid = core.learn(sql -> ask(own, core.timeout, sql).rows());
                    listens = pid == own.pid(); // there is no pooler in between
                    if (listens) {
                        own.listen();
                    }
                    core.connected(listens);
                }
                Core.Question question = own == null ? null : core.plan(now);
                busyAt = core.isIdle() ? busyAt : now;
                if (question != null) {
                    send(question);
                    pause = Protocol.BACKOFF_FIRST;
                    core.deliver();
                } else if (own != null && now >= busyAt + Protocol.IDLE) {
                    hangUp();
                } else if (own != null) {
                    double until = Math.min(core.nextAt(), busyAt == now ? NEVER : busyAt + Protocol.IDLE);
                    rest(listens, Math.min(until - clock(), Protocol.IDLE));
                } else {
                    rest(false, NEVER);
                }
            } catch (InterruptedException | RuntimeException e) {
                boolean ours = e instanceof DlockException;
                LOG.log(ours ? System.Logger.Level.DEBUG : System.Logger.Level.ERROR, "renewal: " + e.getMessage(), ours ? null : e);
                if (e instanceof DlockException known && known.isTurnedAway()) {
                    core.aliveAt = clock();
                }
                hangUp();
                retryAt = clock() + Protocol.jitter(pause);
                pause = Math.min(2 * pause, Protocol.BACKOFF_LAST);
            }
        }
        hangUp();
    }

    private void send(Core.Question question) {
        Answer answer;
        try {
            answer = ask(own, question.timeout(), question.sql(), question.params());
        } catch (DlockException e) {
            question.failed().accept(e);
            if (e instanceof DlockException.Unreachable) {
                throw e;
            }
            return;
        }
        core.aliveAt = clock();
        question.answered().accept(answer.rows(), answer.sentAt());
    }

    private void hangUp() {
        if (own != null) {
            own.close();
            own = null;
        }
    }

    /** Until something is heard, somebody rings, or the time is over. */
    private void rest(boolean listens, double seconds) throws InterruptedException {
        rests = seconds == NEVER; // first, so that the watch looks after locks that are added from now on
        double until = rests ? Math.max(core.needsAt(), retryAt) : clock() + seconds;
        restsUntil = rests ? 0 : until;
        if (listens) {
            for (boolean heard = false; !heard && !rung && !core.closed && clock() < until; ) {
                List<String> payloads = own.hear((int) (1000 * Math.min(until - clock(), Protocol.SLICE)));
                payloads.forEach(core::hear);
                heard = !payloads.isEmpty();
            }
        } else {
            mutex.lock();
            try {
                if (!rung && !stopping) {
                    keeperWakes.awaitNanos((long) Math.min((until - clock()) * 1e9, Long.MAX_VALUE));
                }
            } finally {
                mutex.unlock();
            }
        }
        restsUntil = 0;
        rests = false;
        rung = false;
    }
}
