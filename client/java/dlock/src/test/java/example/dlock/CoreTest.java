package example.dlock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Test;

/** Decisions of the core that need no server. */
class CoreTest {
    private final Core core = new Core(10, null, event -> {});

    private Hold hold(Duration ttl) {
        Options options = Locks.options(new Options(), o -> o.ttl(ttl));
        return core.add(List.of("k"), "owner", List.of(7L), options, Protocol.clock(), Protocol.NEVER).holds.get(0);
    }

    private void answer(Hold hold, Long lasts, String state) {
        core.renewed(List.of(hold), new Boolean[] {true}, List.<Object[]>of(new Object[] {1L, lasts, state, null}), Protocol.clock());
    }

    @Test
    void aLateAnswerRevivesNothing() {
        Hold hold = hold(Duration.ofSeconds(30));
        hold.deadline = Protocol.clock() - 0.001;
        answer(hold, 30_000L, "held");
        assertFalse(hold.isHeld(Protocol.clock()));
        core.expire(Protocol.clock());
        assertEquals(Hold.State.LOST, hold.state);
        assertEquals("deadline", hold.reason);
        answer(hold, 30_000L, "held");
        assertEquals(Hold.State.LOST, hold.state);
        assertTrue(core.isIdle());
    }

    @Test
    void nullIsFinal() {
        Hold hold = hold(Duration.ofSeconds(30));
        answer(hold, null, "held");
        assertEquals(Hold.State.LOST, hold.state);
    }

    @Test
    void theDeadlineCountsWhatTheServerLeft() {
        Hold hold = hold(Duration.ofSeconds(30));
        double before = hold.deadline;
        answer(hold, 10_000L, "held");
        assertTrue(hold.deadline < before - 15);
    }

    @Test
    void whatIsReleasedIsNotRenewed() {
        core.drop(hold(Duration.ofSeconds(30)).grant);
        assertNull(core.plan(Protocol.clock() + 1000));
    }

    @Test
    void aFloodOfEventsIsNoFloodOfQuestions() {
        Hold hold = hold(Duration.ofSeconds(300)); // so that no renewal is due
        double now = Protocol.clock();
        int asked = 0;
        for (int step = 0; step < 1000; step++) {
            core.hear("{\"event\": \"forced\", \"key\": \"k\", \"version\": 7}");
            Core.Question question = core.plan(now + step * 0.005);
            if (question != null) {
                assertFalse(((Boolean[]) question.params()[3])[0]); // asked, not refreshed
                question.answered().accept(List.<Object[]>of(new Object[] {1L, null, "held", null}), now);
                asked++;
            }
        }
        assertTrue(asked >= 4 && asked <= 4 + 5 / 0.25, "asked " + asked);
        assertEquals(Hold.State.HELD, hold.state);
    }

    @Test
    void eventsThatAreNone() {
        Hold hold = hold(Duration.ofSeconds(300));
        for (String payload : List.of("", "[]", "1", "{}", "{\"event\": 1}", "{\"event\": \"forced\", \"version\": {}}", "\0",
                "{\"event\": \"granted\", \"ticket\": \"x\"}", "{\"event\": \"forced\", \"key\": \"k\", \"version\": 8}",
                "{\"event\":\"forced\",\"version\":99999999999999999999}",
                "{\"key\":\"\\\"event\\\":\\\"forced\\\"\",\"version\":7}")) {
            core.hear(payload);
        }
        assertFalse(hold.heard);
        core.hear("{\"event\":\"forced\",\"key\":\"k\",\"version\":7}");
        assertTrue(hold.heard);
    }

    @Test
    void answersAndWhatIsNone() {
        for (String code : new String[] {null, "08006", "57P01", "57P03", "25006", "25P04", "53300"}) {
            assertInstanceOf(DlockException.Unreachable.class, DlockException.of(code, ""));
        }
        for (String code : List.of("55P03", "57014", "40P01", "42501", "22023", "LK001", "LK002", "XX000", "53400")) {
            assertFalse(DlockException.of(code, "") instanceof DlockException.Unreachable, code);
        }
    }

    /** docs/protocol.md has the same statements, but for those that it abbreviates. */
    @Test
    void statementsAreThoseOfThePage() throws IOException {
        String page = Files.readString(Path.of("../../../docs/protocol.md"));
        Matcher block = Pattern.compile("^```\\n(hello .*?)^```", Pattern.MULTILINE | Pattern.DOTALL).matcher(page);
        assertTrue(block.find());
        Pattern row = Pattern.compile("^(\\w+(?: \\w+)?) +(SELECT.*?)(?=^\\w|\\z)", Pattern.MULTILINE | Pattern.DOTALL);
        Matcher rows = row.matcher(block.group(1));
        Map<String, String> found = new HashMap<>();
        while (rows.find()) {
            found.put(rows.group(1).toUpperCase().replace(' ', '_'), rows.group(2).replaceAll("--.*", ""));
        }
        found.keySet().removeAll(List.of("HELLO", "ENQUEUE")); // abbreviated
        assertEquals(12, found.size());
        found.forEach((name, text) -> assertEquals(plain(text), plain(Sql.valueOf(name).text), name));
    }

    private static String plain(String sql) {
        String written = Pattern.compile("\\bms\\((\\(.*?clock_timestamp\\(\\)\\))\\)", Pattern.DOTALL).matcher(sql)
                .replaceAll("(EXTRACT(EPOCH FROM $1)::float8 OPERATOR(pg_catalog.*) 1000::float8)::int8");
        return written.replaceAll("\\s+|pg_catalog\\.", "");
    }
}
