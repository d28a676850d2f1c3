package example.dlock;

import static example.dlock.Protocol.NEVER;
import static example.dlock.Protocol.clock;

import java.sql.Connection;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * An in-memory fake for unit tests: a server that answers the statements of the protocol.
 *
 * <pre>{@code
 * FakeServer server = new FakeServer();
 * Locks locks = server.locks(mock(Connection.class));
 * try (Lease lease = locks.acquire("nightly")) {
 *     server.take("nightly");                    // lost: as dlock_force_release() does
 *     lease.lost().get(1, TimeUnit.SECONDS);
 * }
 * }</pre>
 *
 * All Locks of one FakeServer share its locks.  It has no priorities, no delay and no durability, and times are those of
 * this process.
 */
public final class FakeServer {
    private static final class Held {
        final long version;
        final String owner;
        final double slots;
        final double since = clock();
        String value;
        double ttl;
        double atLeast;
        double until;
        boolean cooling;

        Held(long version, String owner, String value, double slots, double ttl, double atLeast) {
            this.version = version;
            this.owner = owner;
            this.value = value;
            this.slots = slots;
            this.ttl = ttl;
            this.atLeast = atLeast;
            this.until = since + ttl;
        }
    }

    private final Map<String, List<Held>> held = new HashMap<>();
    private final Set<Long> asked = new HashSet<>();
    private final Map<Long, String> news = new HashMap<>(); // events, by version; each leads to a question
    private long lastVersion;

    /** A server without locks. */
    public FakeServer() {}

    /**
     * A client of this server.
     *
     * @param connection what fenced() gives: a mock of yours; null: fenced() is not used
     * @return locks
     */
    public Locks locks(Connection connection) {
        return new Locks(new FakeSource(connection), 10, null, event -> {});
    }

    /**
     * Take a lock away from all its holders; they notice within a moment.
     *
     * @param key what is locked
     */
    public synchronized void take(String key) {
        tell(key, "forced");
        held.remove(key);
    }

    /**
     * Ask the holders of a lock to yield, as a request with a higher priority does.
     *
     * @param key what is locked
     */
    public synchronized void askToYield(String key) {
        live(key).forEach(one -> asked.add(one.version));
        tell(key, "preempt");
    }

    /**
     * Let another client have the lock.
     *
     * @param key what is locked
     */
    public synchronized void hold(String key) {
        held.put(key, new ArrayList<>(List.of(new Held(++lastVersion, "other", null, 1, NEVER, 0))));
    }

    private void tell(String key, String kind) {
        live(key).forEach(one -> news.put(one.version, "{\"event\":\"" + kind + "\",\"version\":" + one.version + "}"));
    }

    private List<Held> live(String key) {
        double now = clock();
        List<Held> all = held.computeIfAbsent(key, k -> new ArrayList<>());
        all.removeIf(one -> one.until <= now);
        return all;
    }

    private Held find(Object key, Object version) {
        return live((String) key).stream().filter(one -> one.version == (long) version && !one.cooling).findAny().orElse(null);
    }

    private Long grant(String key, double ttl, String owner, String value, double slots, double atLeast) {
        List<Held> live = live(key);
        for (Held one : live) {
            if (one.owner.equals(owner) && !one.cooling) {
                return one.version;
            }
        }
        boolean exclusive = slots == 1 || live.stream().anyMatch(one -> one.slots == 1);
        if (!live.isEmpty() && (exclusive || live.size() >= slots)) {
            return null;
        }
        live.add(new Held(++lastVersion, owner, value, slots, ttl, atLeast));
        return lastVersion;
    }

    private Long[] grantAll(String[] keys, double ttl, String owner, String value, Integer[] slots, Boolean[] shared) {
        Long[] versions = new Long[keys.length];
        for (int i = 0; i < keys.length; i++) {
            versions[i] = grant(keys[i], ttl, owner, value, shared[i] ? NEVER : slots[i], 0);
            if (versions[i] == null) {
                for (int j = 0; j < i; j++) {
                    release(keys[j], versions[j]);
                }
                return null;
            }
        }
        return versions;
    }

    private Long refresh(Object key, Object version, Object value, Object ttl, Object atLeast) {
        Held one = find(key, version);
        if (one == null) {
            return null;
        }
        double now = clock();
        one.value = value == null ? one.value : (String) value;
        one.ttl = ttl == null ? one.ttl : seconds(ttl);
        one.atLeast = atLeast == null ? one.atLeast : now - one.since + seconds(atLeast);
        one.until = now + one.ttl;
        return Math.round(one.ttl * 1000);
    }

    private String release(Object key, Object version) {
        Held one = find(key, version);
        if (one == null) {
            return "not_held";
        }
        one.cooling = true;
        one.until = one.since + one.atLeast;
        return "released";
    }

    private long limit(String key, int n, double per) {
        Long version = grant(key, per, Protocol.newOwner(), null, n, per);
        if (version != null) {
            release(key, version);
            return 0;
        }
        double first = live(key).stream().mapToDouble(one -> one.until).min().orElseThrow();
        return Math.max(1, Math.round(1000 * (first - clock())));
    }

    private static double seconds(Object interval) {
        return Long.parseLong(((String) interval).replace(" ms", "")) / 1000.0;
    }

    private static List<Object[]> row(Object... columns) {
        return List.<Object[]>of(columns);
    }

    private synchronized List<Object[]> answer(Sql sql, Object... p) {
        return switch (sql) {
            case HELLO -> row(0, "fake");
            case FEATURES -> row("fake", "1", new Object[0]);
            case TRY -> row(grant((String) p[0], seconds(p[1]), (String) p[2], (String) p[3],
                    (boolean) p[11] ? NEVER : (int) p[7], seconds(p[8])));
            case TRY_ALL -> row((Object) grantAll((String[]) p[0], seconds(p[1]), (String) p[2], (String) p[3],
                    (Integer[]) p[5], (Boolean[]) p[6]));
            case REFRESH -> row(refresh(p[0], p[1], p[3], p[4], p[5]));
            case RENEW -> renew((String[]) p[0], (Long[]) p[1], (Boolean[]) p[3]);
            case RELEASE -> releaseAll((String[]) p[0], (Long[]) p[1]);
            case ABANDON_PORTABLE -> Arrays.stream((Object[]) p[0]).map(key -> new Object[] {"released"}).toList();
            case LIMIT -> row(limit((String) p[0], (int) p[1], seconds(p[2])));
            case GET -> live((String) p[0]).stream().filter(one -> !one.cooling)
                    .map(one -> new Object[] {one.version, one.owner, one.value, "held"}).toList();
            default -> throw new UnsupportedOperationException(sql.name());
        };
    }

    private List<Object[]> renew(String[] keys, Long[] versions, Boolean[] renew) {
        List<Object[]> rows = new ArrayList<>();
        for (int i = 0; i < keys.length; i++) {
            Long lasts = renew[i] ? refresh(keys[i], versions[i], null, null, null) : null;
            String state = find(keys[i], versions[i]) == null ? "held_by_other" : asked.contains(versions[i]) ? "preempting" : "held";
            rows.add(new Object[] {i + 1, lasts, state, 1000});
        }
        return rows;
    }

    private List<Object[]> releaseAll(String[] keys, Long[] versions) {
        List<Object[]> rows = new ArrayList<>();
        for (int i = 0; i < keys.length; i++) {
            rows.add(new Object[] {release(keys[i], versions[i])});
        }
        return rows;
    }

    private synchronized List<String> news() {
        return List.copyOf(news.values());
    }

    /** A Source and its Session at once. */
    private final class FakeSource implements Source, Source.Session {
        private final Connection connection;

        FakeSource(Connection connection) {
            this.connection = connection;
        }

        @Override
        public Session borrow() {
            return this;
        }

        @Override
        public Session open() {
            return this;
        }

        @Override
        public Connection connection() {
            return connection;
        }

        @Override
        public void fence(Connection to, String schema, List<Hold> holds) throws SQLException {
            synchronized (FakeServer.this) {
                for (Hold hold : holds) {
                    if (find(hold.key, hold.version) == null) {
                        throw new SQLException("lock \"" + hold.key + "\" is not held with version " + hold.version, "LK001");
                    }
                }
            }
        }

        @Override
        public List<Object[]> query(Sql sql, String schema, Object... params) {
            return answer(sql, params);
        }

        @Override
        public int pid() {
            return 0;
        }

        @Override
        public void listen() {}

        @Override
        public List<String> hear(int millis) {
            try {
                Thread.sleep(Math.min(millis, 20));
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
            return news();
        }

        @Override
        public void abort() {}

        @Override
        public void close() {}
    }
}
