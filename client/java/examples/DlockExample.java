// dlock from Java: JDBC and plain SQL.
//
//   java DlockExample cron KEY TTL COMMAND...   run a command unless it runs elsewhere
//   java DlockExample leader KEY TTL NAME       lead, or wait to lead
//   java DlockExample writer KEY TTL            write the lines of standard input, fenced
//
// TTL is in seconds.  The server is named by JDBC_URL (jdbc:postgresql://...).
// Exit status: 75 the lock is busy, 76 it was lost.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.Arrays;
import java.util.Properties;
import java.util.UUID;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;

public class DlockExample {
    static final int BUSY = 75, LOST = 76;

    static double now() {
        return System.nanoTime() / 1e9;     // monotonic, unlike currentTimeMillis()
    }

    static void sleep(double seconds) throws InterruptedException {
        TimeUnit.NANOSECONDS.sleep((long) (seconds * 1e9));
    }

    // socketTimeout: a server that does not answer is to be noticed.
    static Connection connect(double timeout) throws SQLException {
        Properties properties = new Properties();
        properties.setProperty("connectTimeout", "2");
        properties.setProperty("socketTimeout", String.valueOf((long) Math.ceil(timeout)));
        properties.setProperty("tcpKeepAlive", "true");
        return DriverManager.getConnection(System.getenv("JDBC_URL"), properties);
    }

    static <T> T ask(Connection connection, Class<T> type, String sql, Object... args) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            for (int i = 0; i < args.length; i++)
                statement.setObject(i + 1, args[i]);
            try (ResultSet result = statement.executeQuery()) {
                result.next();
                return result.getObject(1, type);
            }
        }
    }

    // The version, or null.  A lost answer is asked for again: the same owner
    // gets the same grant.
    static Long acquire(String key, double ttl, String owner, double wait) throws Exception {
        double giveUp = now() + wait + ttl;
        for (;;) {
            try (Connection connection = connect(wait + ttl)) {
                return ask(connection, Long.class,
                    "SELECT dlock_acquire(?::text, make_interval(secs => ?::float8), owner => ?::text,"
                    + " wait => make_interval(secs => ?::float8))", key, ttl, owner, wait);
            } catch (SQLException e) {
                // 08: the connection; 57P: the server goes down or starts; 53300: it is full
                String state = String.valueOf(e.getSQLState());
                if (!state.matches("(08|57P|53300).*") || now() > giveUp)
                    throw e;
                sleep(0.2);
            }
        }
    }

    // Renews a lock every third of its TTL, from a thread and a connection of
    // its own, and knows when it can no longer be relied on.
    static class Lease {
        final String key;
        final long version;
        final double ttl;
        final ScheduledExecutorService timer = Executors.newSingleThreadScheduledExecutor(task -> {
            Thread thread = new Thread(task, "dlock renewal");
            thread.setDaemon(true);
            return thread;
        });
        volatile double deadline = Double.NEGATIVE_INFINITY;
        volatile boolean gone;
        Connection connection;              // the timer's

        // The first renewal is at once: the acquire may have waited, so when
        // the grant began is not known here.
        Lease(String key, long version, double ttl) throws Exception {
            this.key = key;
            this.version = version;
            this.ttl = ttl;
            timer.submit(this::renew).get();
        }

        void renew() {
            double sent = now();
            try {
                if (connection == null)
                    connection = connect(ttl / 3);
                Object expiry = ask(connection, java.time.OffsetDateTime.class,
                    "SELECT dlock_refresh(?::text, ?::bigint)", key, version);
                if (expiry == null)
                    gone = true;
                else    // From before it was sent, and a tenth less: the server ends later.
                    deadline = sent + 0.9 * ttl;
            } catch (SQLException e) {
                // Not known: the deadline stands, a new connection may still make it.
                close();
            }
            if (!gone && !timer.isShutdown())
                timer.schedule(this::renew, (long) (ttl * 1e9 / (connection == null ? 20 : 3)), TimeUnit.NANOSECONDS);
        }

        void close() {
            try {
                if (connection != null)
                    connection.close();
            } catch (SQLException e) {
                // it was broken
            }
            connection = null;
        }

        boolean lost() {
            return gone || now() >= deadline;
        }

        void stop() {
            timer.execute(this::close);
            timer.shutdown();
        }

        void release() throws SQLException {
            stop();
            try (Connection connection = connect(ttl)) {
                ask(connection, String.class, "SELECT dlock_release(?::text, ?::bigint)", key, version);
            }
        }
    }

    // False if the lock is not ours any more; then nothing was written.
    static boolean fencedWrite(Connection connection, String key, long version, String line) throws SQLException {
        connection.setAutoCommit(false);
        try (PreparedStatement fence = connection.prepareStatement("SELECT dlock_fence(?::text, ?::bigint)");
             PreparedStatement insert = connection.prepareStatement(
                 "INSERT INTO journal (version, line) VALUES (?, ?)")) {
            fence.setString(1, key);
            fence.setLong(2, version);
            fence.execute();
            insert.setLong(1, version);
            insert.setString(2, line);
            insert.execute();
            connection.commit();
            return true;
        } catch (SQLException e) {
            connection.rollback();
            if (!"LK001".equals(e.getSQLState()))
                throw e;
            return false;
        }
    }

    static int cron(String key, double ttl, String[] command) throws Exception {
        Long version = acquire(key, ttl, UUID.randomUUID().toString(), 0);
        if (version == null)
            return BUSY;
        Lease lease = new Lease(key, version, ttl);
        if (lease.lost())
            return LOST;
        Process child = new ProcessBuilder(command).inheritIO().start();
        while (!child.waitFor((long) (ttl * 1e9 / 100), TimeUnit.NANOSECONDS)) {
            if (!lease.lost())
                continue;
            // What is left until the server's expiry is a tenth of the TTL.
            child.destroy();
            if (!child.waitFor((long) (ttl * 1e9 / 20), TimeUnit.NANOSECONDS))
                child.destroyForcibly().waitFor();
            return LOST;
        }
        lease.release();
        return child.exitValue();
    }

    static int leader(String key, double ttl, String name) throws Exception {
        for (;;) {
            // unique to this run, so that a restarted process is another candidate
            Long version = acquire(key, ttl, name + " " + UUID.randomUUID(), 60);
            if (version == null)
                continue;
            Lease lease = new Lease(key, version, ttl);
            try (Connection connection = connect(ttl)) {
                while (!lease.lost() && fencedWrite(connection, key, version, name))
                    sleep(ttl / 10);
            }
            lease.stop();
        }
    }

    static int writer(String key, double ttl) throws Exception {
        Long version = acquire(key, ttl, UUID.randomUUID().toString(), 10);
        if (version == null)
            return BUSY;
        Lease lease = new Lease(key, version, ttl);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        try (Connection connection = connect(ttl)) {
            for (String line; (line = in.readLine()) != null;) {
                // No lease.lost() here: the fence knows better.
                if (!fencedWrite(connection, key, version, line)) {
                    System.err.println("LK001: the lock was lost, nothing was written");
                    return LOST;
                }
            }
        }
        lease.release();
        return 0;
    }

    public static void main(String[] args) throws Exception {
        String what = args.length < 3 ? "" : args[0];
        System.exit(switch (what) {
            case "cron" -> cron(args[1], Double.parseDouble(args[2]), Arrays.copyOfRange(args, 3, args.length));
            case "leader" -> leader(args[1], Double.parseDouble(args[2]), args[3]);
            case "writer" -> writer(args[1], Double.parseDouble(args[2]));
            default -> throw new IllegalArgumentException("usage: cron|leader|writer KEY TTL ...");
        });
    }
}
