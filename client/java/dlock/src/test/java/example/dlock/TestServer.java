package example.dlock;

import static org.junit.jupiter.api.Assertions.fail;

import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.concurrent.Callable;
import java.util.concurrent.atomic.AtomicLong;
import org.postgresql.ds.PGSimpleDataSource;

/**
 * A database that has dlock, named by the variables of libpq (PGHOST, PGPORT, PGDATABASE, PGUSER), as a superuser.
 * scripts/test gives one.  What every client does is tested by test/conformance; these tests are about what only this
 * package has.
 */
final class TestServer {
    private static final AtomicLong NUMBER = new AtomicLong(System.nanoTime());

    private TestServer() {}

    static PGSimpleDataSource source() {
        return source(System.getenv("PGDATABASE"));
    }

    static PGSimpleDataSource source(String database) {
        PGSimpleDataSource source = new PGSimpleDataSource();
        source.setURL("jdbc:postgresql://" + System.getenv("PGHOST") + ":" + System.getenv("PGPORT") + "/" + database);
        source.setUser(System.getenv("PGUSER"));
        return source;
    }

    /** The first column of the first row. */
    static Object sql(String query, Object... params) throws SQLException {
        try (Connection connection = source().getConnection(); PreparedStatement statement = connection.prepareStatement(query)) {
            for (int i = 0; i < params.length; i++) {
                statement.setObject(i + 1, params[i]);
            }
            if (!statement.execute()) {
                return null;
            }
            try (ResultSet rows = statement.getResultSet()) {
                return rows.next() ? rows.getObject(1) : null;
            }
        }
    }

    static long grants(String key) throws SQLException {
        return (long) sql("SELECT count(*) FROM dlock_get(?) WHERE state <> 'cooling'", key);
    }

    static void untilRenewed(String key) {
        eventually(() -> Boolean.TRUE.equals(sql("SELECT refreshed_at > acquired_at FROM dlock_get(?)", key)));
    }

    static String newKey() {
        return "key:" + NUMBER.incrementAndGet();
    }

    static void eventually(Callable<Boolean> condition) {
        try {
            for (int i = 0; i < 3000; i++) {
                if (condition.call()) {
                    return;
                }
                Thread.sleep(20);
            }
        } catch (Exception e) {
            throw new AssertionError(e);
        }
        fail("it did not happen in time");
    }
}
