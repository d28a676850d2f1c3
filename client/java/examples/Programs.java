import example.dlock.DlockException;
import example.dlock.Lease;
import example.dlock.Locks;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import org.postgresql.ds.PGSimpleDataSource;

/**
 * The programs of docs/languages.md.
 *
 * <pre>
 * Programs cron KEY TTL COMMAND...   run a command unless it runs elsewhere
 * Programs leader KEY TTL NAME       lead, or wait to lead
 * Programs writer KEY TTL            write the lines of standard input, fenced
 * </pre>
 *
 * TTL is in seconds.  The server is named by the PG* variables, as for psql.  Exit status: 75 the lock is busy, 76 it was
 * lost.
 */
public final class Programs {
    private static final int BUSY = 75;
    private static final int LOST = 76;

    private Programs() {}

    static int cron(Locks locks, String key, Duration ttl, List<String> command) throws IOException, InterruptedException {
        try (Lease lease = locks.acquire(key, o -> o.ttl(ttl).wait(Duration.ZERO))) {
            Process child = new ProcessBuilder(command).inheritIO().start();
            lease.lost().thenRun(child::destroyForcibly);
            return child.waitFor();
        }
    }

    static void leader(Locks locks, String key, Duration ttl, String name) throws SQLException, InterruptedException {
        while (true) {
            try (Lease term = locks.elect(key, o -> o.ttl(ttl).value(name))) {
                while (term.isHeld()) {
                    term.fenced(connection -> write(connection, term.version(), name));
                    Thread.sleep(ttl.toMillis() / 10);
                }
            } catch (DlockException.Lost e) {
                continue; // be a candidate again
            }
        }
    }

    static int writer(Locks locks, String key, Duration ttl) throws IOException, SQLException, InterruptedException {
        try (Lease lease = locks.acquire(key, o -> o.ttl(ttl).wait(Duration.ofSeconds(10)))) {
            BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                String text = line;
                lease.fenced(connection -> write(connection, lease.version(), text));
            }
        }
        return 0;
    }

    private static void write(Connection connection, long version, String line) throws SQLException {
        try (PreparedStatement insert = connection.prepareStatement("INSERT INTO journal VALUES (?, ?)")) {
            insert.setLong(1, version);
            insert.setString(2, line);
            insert.executeUpdate();
        }
    }

    private static String variable(String name, String otherwise) {
        return Optional.ofNullable(System.getenv(name)).orElse(otherwise);
    }

    public static void main(String[] args) throws IOException, SQLException, InterruptedException {
        PGSimpleDataSource server = new PGSimpleDataSource(); // a program that does more has a pool
        server.setUser(variable("PGUSER", System.getProperty("user.name")));
        server.setPassword(variable("PGPASSWORD", null));
        server.setURL("jdbc:postgresql://" + variable("PGHOST", "localhost") + ":" + variable("PGPORT", "5432") + "/"
                + variable("PGDATABASE", server.getUser()));
        Duration ttl = Duration.ofSeconds(Long.parseLong(args[2]));
        int status = 0;
        try (Locks locks = new Locks(server)) {
            switch (args[0]) {
                case "cron" -> status = cron(locks, args[1], ttl, Arrays.asList(args).subList(3, args.length));
                case "leader" -> leader(locks, args[1], ttl, args[3]);
                default -> status = writer(locks, args[1], ttl);
            }
        } catch (DlockException.Busy e) {
            status = BUSY;
        } catch (DlockException.Lost e) {
            System.err.println(e.getMessage());
            status = LOST;
        }
        System.exit(status);
    }
}
