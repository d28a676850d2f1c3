/** A LockRegistry of Spring Integration. */
package example.dlock.spring;
