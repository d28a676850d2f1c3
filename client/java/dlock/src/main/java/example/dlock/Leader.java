package example.dlock;

/**
 * Who holds a key.
 *
 * @param version the version of the lock, which is the term of a leader
 * @param owner the request that got it; null if it is another role's and hidden
 * @param value what the holder has published; null if there is none, or it is hidden
 */
public record Leader(long version, String owner, String value) {}
