package example.dlock;

import java.sql.Array;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.regex.Pattern;
import javax.sql.DataSource;
import org.postgresql.PGConnection;
import org.postgresql.PGNotification;
import org.postgresql.core.BaseConnection;
import org.postgresql.core.TransactionState;

/** Connections of a DataSource. */
final class JdbcSource implements Source {
    private static final boolean HAS_PGJDBC = hasPgjdbc();

    /** What the URL of pgjdbc's own DataSource says where the program has said nothing. */
    private static final Pattern NOT_CHOSEN = Pattern.compile("&(connectTimeout=10|loginTimeout=0|tcpKeepAlive=false|targetServerType=any"
            + "|ApplicationName=PostgreSQL\\+JDBC\\+Driver)(?=&|$)");

    private final DataSource pool;
    private final DataSource direct;
    private final double timeout;

    JdbcSource(DataSource pool, DataSource direct, double timeout) {
        this.pool = pool;
        this.direct = direct;
        this.timeout = timeout;
    }

    private static boolean hasPgjdbc() {
        try {
            Class.forName("org.postgresql.core.BaseConnection");
            return true;
        } catch (ClassNotFoundException e) {
            return false;
        }
    }

    @Override
    public Session borrow() {
        try {
            return new JdbcSession(pool.getConnection(), false);
        } catch (SQLException e) {
            throw translated(e);
        }
    }

    @Override
    public Session open() {
        try {
            return new JdbcSession(direct != null ? direct.getConnection() : connect(), true);
        } catch (SQLException e) {
            throw translated(e);
        }
    }

    @Override
    public Connection connection() throws SQLException {
        return pool.getConnection();
    }

    @Override
    public void fence(Connection connection, String schema, List<Hold> holds) throws SQLException {
        for (Hold hold : holds) {
            execute(connection, Sql.FENCE, schema, hold.key, hold.version);
        }
    }

    /**
     * A connection beside the pool, which may be empty.  javax.sql has no way to ask a pool for what it connects
     * with, but pools agree on the names: HikariCP, DBCP, Tomcat, C3P0 and pgjdbc's own.
     */
    private Connection connect() throws SQLException {
        Properties properties = new Properties();
        if (property("DataSourceProperties") instanceof Properties more) {
            properties.putAll(more);
        }
        if (!(property("JdbcUrl", "Url", "URL") instanceof String url) || !url.startsWith("jdbc:postgresql:")) {
            return pool.getConnection();
        }
        String seconds = String.valueOf(Math.max((int) (timeout / 2), 2));
        properties.putIfAbsent("connectTimeout", seconds);
        properties.putIfAbsent("loginTimeout", seconds);
        properties.putIfAbsent("tcpKeepAlive", "true");
        properties.putIfAbsent("targetServerType", "primary");
        properties.putIfAbsent("ApplicationName", "dlock");
        if (property("Username", "UserName", "User") instanceof String user) {
            properties.put("user", user);
        }
        if (property("Password") instanceof String password) {
            properties.put("password", password);
        }
        return DriverManager.getConnection(NOT_CHOSEN.matcher(url).replaceAll(""), properties);
    }

    /** The first property of the pool that has a getter of that name and a value. */
    private Object property(String... names) {
        for (String name : names) {
            try {
                Object value = pool.getClass().getMethod("get" + name).invoke(pool);
                if (value != null) {
                    return value;
                }
            } catch (ReflectiveOperationException | RuntimeException e) {
                continue;
            }
        }
        return null;
    }

    static DlockException translated(SQLException error) {
        DlockException known = DlockException.of(error.getSQLState(), String.valueOf(error.getMessage()));
        known.initCause(error);
        return known;
    }

    private static List<Object[]> execute(Connection raw, Sql sql, String schema, Object... params) throws SQLException {
        Sql.Jdbc jdbc = sql.in(schema);
        try (PreparedStatement statement = raw.prepareStatement(jdbc.sql())) {
            for (int i = 0; i < jdbc.order().length; i++) {
                Object param = params[jdbc.order()[i] - 1];
                if (param instanceof Object[] array) {
                    String type = array instanceof String[] ? "text" : array instanceof Long[] ? "int8"
                            : array instanceof Integer[] ? "int4" : "bool";
                    statement.setArray(i + 1, raw.createArrayOf(type, array));
                } else if (param == null) {
                    statement.setString(i + 1, null);
                } else {
                    statement.setObject(i + 1, param);
                }
            }
            List<Object[]> rows = new ArrayList<>();
            if (statement.execute()) {
                try (ResultSet result = statement.getResultSet()) {
                    while (result.next()) {
                        Object[] row = new Object[result.getMetaData().getColumnCount()];
                        for (int i = 0; i < row.length; i++) {
                            Object value = result.getObject(i + 1);
                            row[i] = value instanceof Array array ? array.getArray() : value;
                        }
                        rows.add(row);
                    }
                }
            }
            return rows;
        }
    }

    private static final class JdbcSession implements Session {
        private final Connection raw;
        private final boolean restore; // was not in autocommit
        private final PGConnection pg; // null: this driver cannot listen, or need not
        private int prepareThreshold;
        private boolean listens;

        JdbcSession(Connection raw, boolean own) throws SQLException {
            this.raw = raw;
            try {
                restore = !raw.getAutoCommit();
                if (restore) {
                    if (HAS_PGJDBC && raw.isWrapperFor(BaseConnection.class)
                            && raw.unwrap(BaseConnection.class).getTransactionState() != TransactionState.IDLE) {
                        throw new DlockException.InvalidArgument("a lock cannot be acquired or released within a "
                                + "transaction: it would take effect at its COMMIT only");
                    }
                    raw.setAutoCommit(true);
                }
                pg = own && HAS_PGJDBC && raw.isWrapperFor(PGConnection.class) ? raw.unwrap(PGConnection.class) : null;
                if (pg != null) {
                    prepareThreshold = pg.getPrepareThreshold();
                    pg.setPrepareThreshold(0); // until it is known that there is no pooler
                }
            } catch (SQLException | RuntimeException e) {
                raw.close();
                throw e;
            }
        }

        @Override
        public List<Object[]> query(Sql sql, String schema, Object... params) {
            try {
                return execute(raw, sql, schema, params);
            } catch (SQLException e) {
                throw translated(e);
            }
        }

        @Override
        public void abort() {
            try {
                raw.abort(Runnable::run);
            } catch (SQLException e) {
                return; // it is closed
            }
        }

        @Override
        public int pid() {
            return pg == null ? 0 : pg.getBackendPID();
        }

        @Override
        public void listen() {
            try (Statement statement = raw.createStatement()) {
                statement.execute(Sql.LISTEN.text);
                listens = true;
                pg.setPrepareThreshold(prepareThreshold);
            } catch (SQLException e) {
                throw translated(e);
            }
        }

        @Override
        public List<String> hear(int millis) {
            try {
                List<String> heard = new ArrayList<>();
                PGNotification[] all = pg.getNotifications(Math.max(millis, 1));
                for (PGNotification one : all == null ? new PGNotification[0] : all) {
                    heard.add(one.getParameter());
                }
                return heard;
            } catch (SQLException e) {
                throw translated(e);
            }
        }

        /** As the pool has lent it. */
        private void reset() throws SQLException {
            if (listens) {
                raw.setNetworkTimeout(Runnable::run, 1000); // do not wait for a server that is silent
                try (Statement statement = raw.createStatement()) {
                    statement.execute("UNLISTEN dlock");
                }
                raw.setNetworkTimeout(Runnable::run, 0);
            }
            if (pg != null) {
                pg.setPrepareThreshold(prepareThreshold);
            }
            if (restore) {
                raw.setAutoCommit(false);
            }
        }

        @Override
        public void close() {
            try (raw) {
                if (!raw.isClosed()) {
                    reset();
                }
            } catch (SQLException e) {
                return; // it is broken, and closed
            }
        }
    }
}
