// The adapter for node-postgres.

import type { Client, ClientConfig, Pool, PoolClient } from 'pg';
import type { LocksOptions } from './keeper.js';
import { Locks as BaseLocks } from './locks.js';
import { DlockError, LISTEN, translate, UnreachableError, type Param, type Row } from './protocol.js';
import type { Connection, Source } from './source.js';

export * from './index.js';

const ignore = (): void => undefined;

/** The values as the server sent them, whatever parsers the program has set. */
const types = { getTypeParser: () => (text: string) => text };

async function run(client: Client | PoolClient, text: string, values: readonly Param[]): Promise<Row[]> {
  if (text === LISTEN) {
    await client.query(text);
    return [];
  }
  const result = await client.query<Row>({ text, values: [...values], rowMode: 'array', types: types });
  return result.rows;
}

/** One statement of a pool. */
class Borrowed implements Connection {
  #client: PoolClient | undefined;
  #destroyed = false;

  constructor(private readonly pool: Pool) {}

  async query(text: string, params: readonly Param[], sent: () => void): Promise<Row[]> {
    const client = await this.pool.connect();
    if (this.#destroyed) {
      client.release();
      throw new UnreachableError('the pool had no connection in time');
    }
    this.#client = client;
    client.on('error', ignore); // the statement fails, too
    sent();
    try {
      const rows = await run(client, text, params);
      this.#release(false);
      return rows;
    } catch (error) {
      // a server that does not accept writes, or goes down, is not asked again
      this.#release(translate(error) instanceof UnreachableError);
      throw error;
    }
  }

  destroy(): void {
    this.#destroyed = true;
    this.#release(true);
  }

  #release(broken: boolean): void {
    const client = this.#client;
    this.#client = undefined;
    if (!broken) client?.off('error', ignore);
    client?.release(broken);
  }
}

/** A connection of our own, with the settings of the pool. */
class Own implements Connection {
  readonly #client: Client & { processID?: number };
  readonly #connected: Promise<unknown>;

  constructor(pool: Pool, hear: (payload: string) => void, timeout: number) {
    const { options, Client: Made } = pool as unknown as {
      options: ClientConfig;
      Client: new (config: ClientConfig) => Client;
    };
    this.#client = new Made({
      application_name: 'dlock',
      keepAlive: true,
      ...options,
      password: options.password, // which is not enumerable
      connectionTimeoutMillis: timeout,
    });
    this.#client.on('error', ignore); // the statement that is under way, or the next one, fails, too
    this.#client.on('notification', (message) => {
      hear(message.payload ?? '');
    });
    this.#connected = this.#client.connect();
    this.#connected.catch(ignore);
  }

  get pid(): number | undefined {
    return this.#client.processID;
  }

  async query(text: string, params: readonly Param[], sent: () => void): Promise<Row[]> {
    await this.#connected;
    sent();
    return run(this.#client, text, params);
  }

  destroy(): void {
    this.#client.end().catch(ignore);
  }
}

class PgSource implements Source<PoolClient> {
  constructor(private readonly pool: Pool) {}

  borrow(): Connection {
    return new Borrowed(this.pool);
  }

  open(hear: (payload: string) => void, timeout: number): Connection {
    return new Own(this.pool, hear, timeout);
  }

  async transaction<T>(
    fences: (query: (sql: string, params: readonly Param[]) => Promise<unknown>) => Promise<void>,
    body: (tx: PoolClient) => Promise<T>,
  ): Promise<T> {
    const client = await this.pool.connect();
    client.on('error', ignore); // the next statement fails, too
    let broken = true;
    try {
      await client.query('BEGIN');
      await fences((sql, params) => run(client, sql, params));
      const result = await body(client);
      const { command } = await client.query('COMMIT');
      broken = false;
      if (command === 'ROLLBACK') {
        throw new DlockError('the transaction was rolled back, because one of its statements had failed');
      }
      return result;
    } catch (error) {
      if (broken) broken = await client.query('ROLLBACK').then(() => false, () => true);
      throw error;
    } finally {
      if (!broken) client.off('error', ignore);
      client.release(broken);
    }
  }
}

/** Locks on the pool of node-postgres.  A fenced transaction has one of its clients. */
export class Locks extends BaseLocks<PoolClient> {
  constructor(pool: Pool, options: LocksOptions = {}) {
    super(new PgSource(pool), options);
  }
}
