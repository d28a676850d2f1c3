package example.dlock.shedlock;

import static org.assertj.core.api.Assertions.assertThat;

import example.dlock.Locks;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import net.javacrumbs.shedlock.core.ExtensibleLockProvider;
import net.javacrumbs.shedlock.test.support.AbstractExtensibleLockProviderIntegrationTest;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.postgresql.ds.PGSimpleDataSource;

/** ShedLock's own tests, in the database that PGHOST, PGPORT, PGDATABASE and PGUSER name. */
class DlockLockProviderTest extends AbstractExtensibleLockProviderIntegrationTest {
    private final PGSimpleDataSource source = new PGSimpleDataSource();
    private Locks locks;

    @BeforeEach
    void open() {
        source.setURL("jdbc:postgresql://" + System.getenv("PGHOST") + ":" + System.getenv("PGPORT") + "/" + System.getenv("PGDATABASE"));
        source.setUser(System.getenv("PGUSER"));
        locks = new Locks(source);
    }

    @AfterEach
    void close() {
        locks.close();
    }

    @Override
    protected ExtensibleLockProvider getLockProvider() {
        return new DlockLockProvider(locks, "shedlock:");
    }

    private boolean isLocked(String name) {
        try (Connection connection = source.getConnection();
                PreparedStatement statement = connection.prepareStatement("SELECT count(*) FROM dlock_get(?)")) {
            statement.setString(1, "shedlock:" + name);
            try (ResultSet rows = statement.executeQuery()) {
                return rows.next() && rows.getInt(1) > 0;
            }
        } catch (SQLException e) {
            throw new AssertionError(e);
        }
    }

    @Override
    protected void assertUnlocked(String name) {
        assertThat(isLocked(name)).isFalse();
    }

    @Override
    protected void assertLocked(String name) {
        assertThat(isLocked(name)).isTrue();
    }
}
