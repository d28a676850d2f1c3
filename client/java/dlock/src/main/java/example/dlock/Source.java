package example.dlock;

import java.sql.Connection;
import java.sql.SQLException;
import java.util.List;

/** Where connections come from: a DataSource, or the fake of unit tests. */
interface Source {
    /** Of the user's pool, for one statement. */
    Session borrow();

    /** For the keeper alone. */
    Session open();

    /** Of the user's pool, for a transaction. */
    Connection connection() throws SQLException;

    /** Run the fence as the next statement of a transaction. */
    void fence(Connection connection, String schema, List<Hold> holds) throws SQLException;

    /** A connection.  It belongs to one thread, but for abort(). */
    interface Session extends AutoCloseable {
        List<Object[]> query(Sql sql, String schema, Object... params);

        /** Make a statement that gets no answer fail. */
        void abort();

        /** The process that the driver was told at connect; 0 if this driver cannot listen. */
        int pid();

        /** There is no pooler in between. */
        void listen();

        /** What was heard; waits for so many milliseconds at most. */
        List<String> hear(int millis);

        @Override
        void close();
    }
}
