// What the core needs of a driver.

import type { Param, Row } from './protocol.js';

/** One connection, or one statement of a pool.  It need not be connected yet. */
export interface Connection {
  /** The process that the driver was told when it connected. */
  readonly pid?: number | undefined;
  /** Runs one statement, in autocommit; calls `sent` just before it is sent.  All values are text. */
  query(sql: string, params: readonly Param[], sent: () => void): Promise<Row[]>;
  /** Closes the socket: who waits for an answer gets an error now, and nothing is cancelled. */
  destroy(): void;
}

/** An adapter for a driver.  `Tx` is what a user's transaction is called with. */
export interface Source<Tx> {
  /** A connection of the user's pool for one statement. */
  borrow(): Connection;
  /** A connection that is not of the pool; `hear` gets the payloads of its notifications. */
  open(hear: (payload: string) => void, timeout: number): Connection;
  /** Runs `body` in a transaction of the user's pool that begins with `fences`. */
  transaction<T>(
    fences: (query: (sql: string, params: readonly Param[]) => Promise<unknown>) => Promise<void>,
    body: (tx: Tx) => Promise<T>,
  ): Promise<T>;
}
