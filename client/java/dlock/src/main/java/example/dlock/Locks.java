package example.dlock;

import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.locks.ReadWriteLock;
import java.util.function.Consumer;
import javax.sql.DataSource;

/**
 * All locks of a program in one database.
 *
 * <pre>{@code
 * Locks locks = new Locks(dataSource);
 * try (Lease lease = locks.acquire("nightly", o -> o.ttl(Duration.ofSeconds(30)).wait(Duration.ofMinutes(1)))) {
 *     lease.fenced(connection -> ...);
 * }
 * }</pre>
 */
public final class Locks implements AutoCloseable {
    final Core core;
    final Keeper keeper;

    /** Makes Locks. */
    public static final class Builder {
        private final DataSource pool;
        private DataSource keeper;
        private Duration timeout = Duration.ofSeconds(10);
        private String schema;
        private Consumer<Event> onEvent = event -> {};

        private Builder(DataSource pool) {
            this.pool = Objects.requireNonNull(pool);
        }

        /**
         * Where the one connection that renews all locks comes from.  It is needed for a pool that does not say what it
         * connects with (getJdbcUrl() or getUrl(), and so on): without it, that connection is one of the pool.
         *
         * @param keeper not a pool
         * @return this
         */
        public Builder keeper(DataSource keeper) {
            this.keeper = keeper;
            return this;
        }

        /**
         * How long the server may be silent before a call fails (Unreachable); 10 s, if it is not given.
         *
         * @param timeout beside the time that the pool takes to give a connection
         * @return this
         */
        public Builder timeout(Duration timeout) {
            this.timeout = timeout;
            return this;
        }

        /**
         * The schema of the functions, if they were installed without an extension.
         *
         * @param schema quoted if necessary
         * @return this
         */
        public Builder schema(String schema) {
            this.schema = schema;
            return this;
        }

        /**
         * Is told of each event, for metrics.
         *
         * @param onEvent must be short, and must not use these Locks
         * @return this
         */
        public Builder onEvent(Consumer<Event> onEvent) {
            this.onEvent = onEvent;
            return this;
        }

        /**
         * Make them.
         *
         * @return locks that have not connected yet
         */
        public Locks build() {
            double seconds = Protocol.seconds(timeout);
            return new Locks(new JdbcSource(pool, keeper, seconds), seconds, schema, onEvent);
        }
    }

    /**
     * Locks with the defaults of the builder.
     *
     * @param pool the pool of the program
     */
    public Locks(DataSource pool) {
        this(new JdbcSource(Objects.requireNonNull(pool), null, 10), 10, null, event -> {});
    }

    Locks(Source source, double timeout, String schema, Consumer<Event> onEvent) {
        core = new Core(timeout, schema, onEvent);
        keeper = new Keeper(core, source);
        Lease.CLEANER.register(this, keeper);
    }

    /**
     * Locks with other options.
     *
     * @param pool the pool of the program
     * @return a builder
     */
    public static Builder builder(DataSource pool) {
        return new Builder(pool);
    }

    /**
     * Acquire a lock.  Waits without limit.
     *
     * @param key what is locked
     * @return the lock; close it
     * @throws InterruptedException while it waited; what it may have got is given back
     */
    public Lease acquire(String key) throws InterruptedException {
        return acquire(key, options -> {});
    }

    /**
     * Acquire a lock.
     *
     * @param key what is locked
     * @param options what is asked for: {@code o -> o.ttl(...).wait(...)}
     * @return the lock; close it
     * @throws InterruptedException while it waited; what it may have got is given back
     * @throws DlockException.Busy another client holds it, and the wait is over
     */
    public Lease acquire(String key, Consumer<Options> options) throws InterruptedException {
        return acquire(List.of(key), options);
    }

    /**
     * Acquire several locks together or none of them.
     *
     * @param keys what is locked
     * @param options what is asked for, for each of them
     * @return the locks; close them
     * @throws InterruptedException while it waited; what it may have got is given back
     * @throws DlockException.Busy another client holds one of them, and the wait is over
     */
    public Lease acquire(Collection<String> keys, Consumer<Options> options) throws InterruptedException {
        return acquire(List.copyOf(keys), options(new Options(), options), true);
    }

    /**
     * Acquire a lock if it is free, or within the wait of the options.
     *
     * @param key what is locked
     * @param options what is asked for
     * @return the lock; nothing: another client holds it
     * @throws InterruptedException while it waited; what it may have got is given back
     */
    public Optional<Lease> tryAcquire(String key, Consumer<Options> options) throws InterruptedException {
        try {
            return Optional.of(acquire(List.of(key), options(new Options().wait(Duration.ZERO), options), true));
        } catch (DlockException.Busy e) {
            return Optional.empty();
        }
    }

    /**
     * Lead, as soon as nobody else does.  The version of the lock is the term.  The TTL is 10 s, if it is not given; its
     * value is what leader() and observe() see.
     *
     * @param key what is led
     * @param options {@code o -> o.value("http://10.0.0.1/")}
     * @return the leader leads until it is lost or closed
     * @throws InterruptedException while it waited
     */
    public Lease elect(String key, Consumer<Options> options) throws InterruptedException {
        return acquire(List.of(key), options(new Options().ttl(Protocol.ELECTION_TTL), options), true);
    }

    /**
     * A view as java.util.concurrent.locks.Lock has it.
     *
     * @param key what is locked
     * @param options what is asked for; `wait` does not count
     * @return a lock that threads share
     */
    public LockView lock(String key, Consumer<Options> options) {
        return new LockView(this, key, options);
    }

    /**
     * A view as java.util.concurrent.locks.Lock has it.
     *
     * @param key what is locked
     * @return a lock that threads share
     */
    public LockView lock(String key) {
        return lock(key, options -> {});
    }

    /**
     * A view as java.util.concurrent.locks.ReadWriteLock has it.
     *
     * @param key what is locked
     * @param options what is asked for; `wait` does not count
     * @return locks that threads share
     */
    public ReadWriteLock readWriteLock(String key, Consumer<Options> options) {
        LockView write = lock(key, options);
        LockView read = lock(key, options.andThen(Options::shared));
        write.excludes(read);
        return new ReadWriteLock() {
            @Override
            public LockView readLock() {
                return read;
            }

            @Override
            public LockView writeLock() {
                return write;
            }
        };
    }

    /**
     * A rate limit: at most n in any time of that length.
     *
     * @param key what is limited
     * @param n how many
     * @param per in this time
     * @return zero: go ahead; else the time after which to ask again
     */
    public Duration limit(String key, int n, Duration per) {
        double left = Request.run(core, keeper, 0, request -> Request.limit(request, key, n, per, 0));
        return Protocol.duration(left);
    }

    /**
     * A rate limit that waits its turn, if that comes in time.
     *
     * @param key what is limited
     * @param n how many
     * @param per in this time
     * @param wait how long to wait for it; null: without limit
     * @param priority the higher the sooner
     * @return zero: go ahead; else the time after which to ask again
     * @throws InterruptedException while it waited
     */
    public Duration limit(String key, int n, Duration per, Duration wait, int priority) throws InterruptedException {
        Request request = new Request(core, keeper, true, Protocol.seconds(wait));
        double left = request.run((Request r) -> Request.limit(r, key, n, per, priority));
        return Protocol.duration(left);
    }

    /**
     * Who leads, or holds the key, now.
     *
     * @param key what is led
     * @return nothing: nobody
     */
    public Optional<Leader> leader(String key) {
        return Optional.ofNullable(Request.run(core, keeper, 0, request -> Request.look(request, key)));
    }

    /**
     * Tell who leads now, and after each change of the leader or of its value, until this thread is interrupted.
     *
     * @param key what is led
     * @param every how often to ask
     * @param seen is told
     * @throws InterruptedException always
     */
    public void observe(String key, Duration every, Consumer<Optional<Leader>> seen) throws InterruptedException {
        Optional<Leader> last = null;
        while (true) {
            Optional<Leader> now = leader(key);
            if (!now.equals(last)) {
                seen.accept(now);
                last = now;
            }
            Thread.sleep(every.toMillis());
        }
    }

    /** Stop renewing.  Locks that are held are told lost and end by their TTL. */
    @Override
    public void close() {
        keeper.run();
    }

    static Options options(Options options, Consumer<Options> given) {
        given.accept(options);
        return options.checked();
    }

    Lease acquire(List<String> keys, Options options, boolean interruptible) throws InterruptedException {
        if (keys.isEmpty() || keys.contains("")) {
            throw new DlockException.InvalidArgument("a key is a text that is not empty");
        }
        return new Lease(this, new Acquire(core, keeper, interruptible, keys, options).run());
    }
}
