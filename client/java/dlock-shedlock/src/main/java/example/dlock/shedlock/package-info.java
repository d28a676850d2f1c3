/** A LockProvider of ShedLock. */
package example.dlock.shedlock;
