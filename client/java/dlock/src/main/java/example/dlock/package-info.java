/** Locks with a TTL and a fencing token, kept by the dlock extension of PostgreSQL. */
package example.dlock;
