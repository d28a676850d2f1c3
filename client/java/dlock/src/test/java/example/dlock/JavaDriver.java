package example.dlock;

import com.google.gson.Gson;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.ref.WeakReference;
import java.nio.charset.StandardCharsets;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Consumer;

/** The driver of the conformance suite; see test/conformance/README.md. */
final class JavaDriver {
    private static final Map<Class<?>, String> RESULTS = Map.of(
            DlockException.Busy.class, "busy", DlockException.Lost.class, "lost", DlockException.Refused.class, "refused",
            DlockException.Deadlock.class, "deadlock", DlockException.Denied.class, "denied",
            DlockException.InvalidArgument.class, "invalid", DlockException.NotReady.class, "not_ready",
            DlockException.Unreachable.class, "unreachable");
    private static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    private static final Map<String, Client> CLIENTS = new ConcurrentHashMap<>();

    private JavaDriver() {}

    private static final class Client {
        final Map<Long, String> names = new ConcurrentHashMap<>();
        final Map<String, Lease> held = new ConcurrentHashMap<>();
        final HikariDataSource pool;
        Locks locks;

        Client(JsonObject command) {
            Duration timeout = ms(command, "timeout");
            HikariConfig config = new HikariConfig();
            config.setJdbcUrl("jdbc:postgresql://" + text(command, "host") + ":" + number(command, "port") + "/"
                    + text(command, "dbname") + "?prepareThreshold=0");
            config.setUsername(text(command, "user"));
            config.setMaximumPoolSize((int) number(command, "pool"));
            config.setMinimumIdle(0);
            config.setInitializationFailTimeout(-1);
            config.setConnectionTimeout(timeout.toMillis());
            config.setValidationTimeout(timeout.toMillis() / 2);
            pool = new HikariDataSource(config);
            locks = Locks.builder(pool).timeout(timeout).onEvent(reporter(text(command, "client"), names)).build();
        }

        /** Reports events; a lock is known by the version of its first key. */
        private static Consumer<Event> reporter(String client, Map<Long, String> names) {
            return event -> {
                String name = names.get(event.version());
                if (name != null && (event.kind() == Event.Kind.LOST || event.kind() == Event.Kind.ASKED)) {
                    say(Map.of("event", event.kind().name().toLowerCase(), "client", client, "lock", name,
                            "reason", event.reason(), "left", event.time().toMillis(), "at", System.currentTimeMillis()));
                }
            };
        }
    }

    private static void say(Map<String, Object> what) {
        synchronized (OUT) {
            OUT.println(new Gson().toJson(what));
            OUT.flush();
        }
    }

    private static boolean has(JsonObject command, String name) {
        return command.has(name) && !command.get(name).isJsonNull();
    }

    private static String text(JsonObject command, String name) {
        return has(command, name) ? command.get(name).getAsString() : null;
    }

    private static long number(JsonObject command, String name) {
        return command.get(name).getAsLong();
    }

    private static Duration ms(JsonObject command, String name) {
        return Duration.ofMillis(number(command, name));
    }

    private static boolean flag(JsonObject command, String name) {
        return has(command, name) && command.get(name).getAsBoolean();
    }

    private static void options(JsonObject command, Options o) {
        long wait = number(command, "wait");
        o.wait(wait < 0 ? null : Duration.ofMillis(wait)).value(text(command, "value"));
        Map<String, Consumer<Duration>> durations = Map.of("ttl", o::ttl, "cleanup", o::cleanup, "at_least", o::atLeast,
                "delay", o::delay, "max_hold", o::maxHold);
        durations.forEach((name, set) -> {
            if (has(command, name)) {
                set.accept(ms(command, name));
            }
        });
        if (flag(command, "shared")) {
            o.shared();
        }
        if (flag(command, "force")) {
            o.force();
        }
        if (has(command, "slots")) {
            o.slots((int) number(command, "slots"));
        }
        if (has(command, "priority")) {
            o.priority((int) number(command, "priority"));
        }
    }

    private static Map<String, Object> acquire(Client client, JsonObject command) throws InterruptedException {
        JsonArray keys = command.getAsJsonArray("keys");
        List<String> names = new ArrayList<>();
        for (JsonElement key : keys) {
            names.add(key.getAsString());
        }
        client.held.remove(text(command, "lock"));
        Lease lease = client.locks.acquire(names, o -> options(command, o));
        client.names.put(lease.version(), text(command, "lock"));
        client.held.put(text(command, "lock"), lease);
        return Map.of("result", "granted", "versions", lease.versions().values());
    }

    private static void fenced(Lease lease, String sql) throws SQLException {
        lease.fenced(connection -> {
            try (Statement statement = connection.createStatement()) {
                statement.execute(sql);
            }
        });
    }

    private static void collect(Client client, JsonObject command) throws InterruptedException {
        WeakReference<Object> gone;
        if (has(command, "lock")) {
            gone = new WeakReference<>(client.held.remove(text(command, "lock")));
        } else {
            gone = new WeakReference<>(client.locks);
            client.held.clear();
            client.locks = null;
        }
        while (gone.get() != null) {
            System.gc();
            Thread.sleep(10);
        }
    }

    private static Map<String, Object> result(String result) {
        return Map.of("result", result);
    }

    private static Map<String, Object> carryOut(JsonObject command) throws SQLException, InterruptedException {
        String verb = text(command, "do");
        if (verb.equals("open")) {
            CLIENTS.put(text(command, "client"), new Client(command));
            return result("ok");
        }
        Client client = CLIENTS.get(text(command, "client"));
        switch (verb) {
            case "acquire":
                return acquire(client, command);
            case "release":
                client.held.get(text(command, "lock")).release();
                return result("released");
            case "state":
                return result(client.held.get(text(command, "lock")).isHeld() ? "held" : "not_held");
            case "fenced":
                fenced(client.held.get(text(command, "lock")), text(command, "sql"));
                return result("ok");
            case "limit":
                Duration left = client.locks.limit(text(command, "key"), (int) number(command, "n"), ms(command, "per"));
                return Map.of("result", "ok", "left", left.toMillis());
            case "close":
                client.locks.close();
                client.pool.close();
                return result("ok");
            case "collect":
                collect(client, command);
                return result("ok");
            default:
                throw new IllegalArgumentException(verb);
        }
    }

    private static void obey(JsonObject command) {
        Map<String, Object> answer;
        try {
            answer = carryOut(command);
        } catch (SQLException | InterruptedException | RuntimeException e) {
            String result = RESULTS.getOrDefault(e.getClass(), "error");
            if (result.equals("error")) {
                e.printStackTrace();
            }
            String code = e instanceof DlockException known ? known.sqlState() : null;
            answer = new ConcurrentHashMap<>(Map.of("result", result, "message", String.valueOf(e.getMessage())));
            if (code != null) {
                answer.put("sqlstate", code);
            }
        }
        answer = new ConcurrentHashMap<>(answer);
        answer.put("id", number(command, "id"));
        say(answer);
    }

    public static void main(String[] args) throws IOException {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonObject command = JsonParser.parseString(line).getAsJsonObject();
            Thread thread = new Thread(null, () -> obey(command), "command", 256 * 1024);
            thread.setDaemon(true);
            thread.start();
        }
        Runtime.getRuntime().halt(0);
    }
}
