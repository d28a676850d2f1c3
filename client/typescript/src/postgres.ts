// The adapter for postgres.js.

import { Socket } from 'node:net';
import postgres, { type Sql, type TransactionSql } from 'postgres';
import type { LocksOptions } from './keeper.js';
import { Locks as BaseLocks } from './locks.js';
import type { Param, Row } from './protocol.js';
import type { Connection, Source } from './source.js';

export * from './index.js';

/** What the driver makes of the options of its user, and takes again: that is how its own listen() works. */
interface Parsed {
  host: string[];
  port: number[];
  path: string | false;
  prepare: boolean;
  connection: Record<string, unknown>;
  socket?: (options: unknown) => Socket | Promise<Socket>;
}
const parsed = (sql: Sql): Parsed => sql.options as unknown as Parsed;

const text = (rows: readonly (readonly (Uint8Array | null)[])[]): Row[] =>
  rows.map((row) => row.map((value) => (value === null ? null : Buffer.from(value).toString('utf8'))));

/** The pending query of a pool.  The driver does not show which connection it is on, so one that gets no
 * answer leaves that connection to the pool. */
class Pooled implements Connection {
  #query: { state?: unknown; cancel(): void } | undefined;

  constructor(private readonly sql: Sql) {}

  async query(statement: string, params: readonly Param[]): Promise<Row[]> {
    const query = this.sql.unsafe(statement, [...params], { prepare: parsed(this.sql).prepare });
    this.#query = query;
    return text(await query.raw());
  }

  destroy(): void {
    // One that was not sent is taken out of the queue.  To cancel the other might hit the next statement of
    // its connection.
    if (this.#query?.state === null) this.#query.cancel();
  }
}

/** A connection of our own, with the settings of the pool, and with a socket that we can close. */
class Own implements Connection {
  readonly #sql: Sql;
  #socket: Socket | undefined;
  #attempts = 0;
  #destroyed = false;
  pid: number | undefined;

  constructor(pool: Sql, hear: (payload: string) => void) {
    const options = parsed(pool);
    this.#sql = postgres({
      ...options,
      connection: { ...options.connection, application_name: 'dlock' },
      max: 1,
      idle_timeout: null,
      max_lifetime: null,
      fetch_types: false,
      prepare: false,
      onnotify: (_channel: string, payload: string) => {
        hear(payload);
      },
      onclose: undefined,
      socket: async () => {
        this.#socket = (await options.socket?.(options)) ?? this.#connect(options);
        if (this.#destroyed) this.#socket.destroy(); // meanwhile
        return this.#socket;
      },
    } as never);
  }

  /** The driver writes to it at once, asks for another one after an error, and so tries each host. */
  #connect({ host, port, path }: Parsed): Socket {
    const socket = new Socket();
    const i = this.#attempts++ % port.length;
    if (path) return socket.connect(path);
    return Object.assign(socket, { host: host[i] }).connect(port[i] ?? 5432, host[i] ?? 'localhost');
  }

  async query(statement: string, params: readonly Param[], sent: () => void): Promise<Row[]> {
    sent();
    const rows = await this.#sql.unsafe(statement, [...params]).raw();
    this.pid = (rows.state as { pid?: number }).pid;
    return text(rows);
  }

  destroy(): void {
    this.#destroyed = true;
    void this.#sql.end({ timeout: 0 });
    this.#socket?.destroy();
  }
}

class PostgresSource implements Source<TransactionSql> {
  constructor(private readonly sql: Sql) {}

  borrow(): Connection {
    return new Pooled(this.sql);
  }

  open(hear: (payload: string) => void): Connection {
    return new Own(this.sql, hear);
  }

  async transaction<T>(
    fences: (query: (sql: string, params: readonly Param[]) => Promise<unknown>) => Promise<void>,
    body: (tx: TransactionSql) => Promise<T>,
  ): Promise<T> {
    const [result] = await this.sql.begin(async (tx) => {
      await fences((statement, params) => tx.unsafe(statement, [...params]));
      return [await body(tx)] as const; // in an array, because an array of promises is awaited
    });
    return result as T;
  }
}

/** Locks on postgres.js.  A fenced transaction has the `sql` of its begin(). */
export class Locks extends BaseLocks<TransactionSql> {
  constructor(sql: Sql, options: LocksOptions = {}) {
    super(new PostgresSource(sql), options);
  }
}
