package example.dlock;

/** One grant of one key, and how long it is ours.  The core's monitor protects what changes. */
final class Hold {
    enum State { HELD, LOST, RELEASED }

    final Core core;
    final Grant grant;
    final String key;
    final String owner;
    final long version;
    final double since = Protocol.clock();
    volatile double ttl;
    volatile State state = State.HELD;
    volatile String reason = "";
    volatile double deadline;
    double ends;
    double dangerAt;
    double due;
    boolean renews = true;
    boolean asked;
    boolean heard; // an event has named it
    boolean forced; // that event said so
    boolean alone; // the server refused a statement with others

    Hold(Core core, Grant grant, String key, String owner, long version, Options options) {
        this.core = core;
        this.grant = grant;
        this.key = key;
        this.owner = owner;
        this.version = version;
        this.ttl = Protocol.seconds(options.ttl);
        this.ends = since + Protocol.seconds(options.maxHold);
    }

    /**
     * The server answered a question that was sent then.  It counts from later on, and may have granted less than the
     * TTL (a policy's max_hold).
     */
    void renewed(double sentAt, double lasts) {
        double granted = Math.min(ttl, lasts);
        deadline = Math.min(sentAt + Protocol.LEASE * granted, ends);
        dangerAt = sentAt + Protocol.DANGER * granted;
        due = sentAt + Protocol.jitter(Protocol.PERIOD * granted);
    }

    /** From now on, the TTL and the longest time to hold it are these. */
    void extend(double newTtl) {
        ends = ends == Protocol.NEVER ? ends : Protocol.clock() + newTtl;
        ttl = newTtl;
    }

    boolean isHeld(double now) {
        return state == State.HELD && now < deadline;
    }

    /**
     * The server says that it is free, or another's.  Before our deadline it cannot have expired, so if another client
     * holds it, it was taken away.
     */
    void gone(String said) {
        boolean taken = forced || said.equals("held_by_other");
        lose(asked ? "preempted" : taken ? "forced" : "expired");
    }

    void lose(String why) {
        if (state == State.HELD) {
            reason = why;
            state = State.LOST;
            core.tell(Event.Kind.LOST, this, 0, why);
        }
    }
}
