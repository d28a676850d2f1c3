// The driver of the conformance suite; test/conformance/README.md says what it does.  Its argument is the
// adapter: pg or postgres.

import { writeSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { setImmediate as turn } from 'node:timers/promises';
import pg from 'pg';
import postgres from 'postgres';
import * as dlock from '../src/index.js';
import * as onPg from '../src/pg.js';
import * as onPostgres from '../src/postgres.js';

interface Command {
  id: number;
  do: string;
  client: string;
  lock: string;
  keys: string[];
  wait: number;
  ttl?: number;
  shared?: boolean;
  slots?: number;
  priority?: number;
  cleanup?: number;
  force?: boolean;
  at_least?: number;
  delay?: number;
  max_hold?: number;
  value?: string;
  sql: string;
  key: string;
  n: number;
  per: number;
  host: string;
  port: number;
  dbname: string;
  user: string;
  timeout: number;
  pool: number;
}
type Answer = Record<string, unknown>;
interface Client {
  locks: dlock.Locks | undefined;
  held: Map<string, dlock.Lock>;
  /** The names of locks, by version. */
  names: Map<bigint, string>;
  execute: (tx: unknown, sql: string) => Promise<unknown>;
  end: () => Promise<void>;
}

const RESULTS: [typeof dlock.DlockError, string][] = [
  [dlock.BusyError, 'busy'], [dlock.LostError, 'lost'], [dlock.RefusedError, 'refused'],
  [dlock.DeadlockError, 'deadlock'], [dlock.DeniedError, 'denied'], [dlock.InvalidArgumentError, 'invalid'],
  [dlock.ClosedError, 'invalid'], [dlock.NotReadyError, 'not_ready'], [dlock.UnreachableError, 'unreachable'],
];

const clients = new Map<string, Client>();
const say = (what: Answer): void => void writeSync(1, `${JSON.stringify(what)}\n`);

function open(command: Command): Answer {
  const { client, host, port, dbname: database, user, timeout, pool: max } = command;
  const names = new Map<bigint, string>();
  const onEvent = (event: dlock.LockEvent): void => {
    if (event.type !== 'lost' && event.type !== 'asked') return;
    const lock = names.get(event.version);
    const reason = event.reason === 'maxHold' ? 'max_hold' : event.reason;
    const left = event.type === 'asked' ? Math.round(event.left) : undefined;
    if (lock !== undefined) say({ event: event.type, client, lock, reason, left, at: Date.now() });
  };
  const made = { names, held: new Map<string, dlock.Lock>() };
  if (process.argv[2] === 'postgres') {
    const sql = postgres({ host, port, database, user, max, prepare: false, onnotice: () => undefined });
    clients.set(client, {
      ...made,
      locks: new onPostgres.Locks(sql, { timeout, onEvent }),
      execute: (tx, text) => (tx as postgres.TransactionSql).unsafe(text),
      end: () => sql.end({ timeout: 0 }),
    });
  } else {
    const pool = new pg.Pool({ host, port, database, user, max });
    pool.on('error', () => undefined);
    clients.set(client, {
      ...made,
      locks: new onPg.Locks(pool, { timeout, onEvent }),
      execute: (tx, text) => (tx as pg.PoolClient).query(text),
      end: () => pool.end(),
    });
  }
  return { result: 'ok' };
}

async function acquire({ locks, held, names }: Client, command: Command): Promise<Answer> {
  const { keys, wait, at_least: atLeast, max_hold: maxHold, shared, lock: name } = command;
  const { ttl, slots, priority, cleanup, force, delay, value } = command;
  const lock = await locks?.acquire(keys, {
    wait: wait < 0 ? undefined : wait,
    mode: shared === true ? 'shared' : undefined,
    ttl, slots, priority, cleanup, force, atLeast, delay, maxHold, value,
  });
  if (lock === undefined) throw new Error('the client was collected');
  names.set(lock.version, name);
  held.set(name, lock);
  return { result: 'granted', versions: [...lock.versions.values()].map(Number) };
}

/** Forgets a lock or a client, and collects garbage until it is gone. */
async function collect(client: Client, name: string | undefined): Promise<Answer> {
  const gone = new WeakRef((name === undefined ? client.locks : client.held.get(name)) ?? {});
  if (name === undefined) {
    client.held.clear();
    client.locks = undefined;
  } else {
    client.held.delete(name);
  }
  do {
    await turn();
    gc?.();
  } while (gone.deref() !== undefined);
  return { result: 'ok' };
}

async function obey(command: Command): Promise<Answer> {
  if (command.do === 'open') return open(command);
  const client = clients.get(command.client);
  if (client === undefined) throw new Error(`there is no client ${command.client}`);
  const lock = (): dlock.Lock => {
    const held = client.held.get(command.lock);
    if (held === undefined) throw new Error(`there is no lock ${command.lock}`);
    return held;
  };
  switch (command.do) {
    case 'acquire':
      return acquire(client, command);
    case 'release':
      await lock().release();
      return { result: 'released' };
    case 'state':
      return { result: lock().held ? 'held' : 'not_held' };
    case 'fenced':
      await lock().fenced((tx) => client.execute(tx, command.sql));
      return { result: 'ok' };
    case 'limit': {
      const left = await client.locks?.limit(command.key, command.n, command.per, { wait: command.wait });
      return { result: 'ok', left };
    }
    case 'close':
      await client.locks?.close();
      await client.end();
      return { result: 'ok' };
    case 'collect':
      return collect(client, command.lock);
    default:
      throw new Error(`what is ${command.do}?`);
  }
}

function resultOf(error: unknown): Answer {
  const result = RESULTS.find(([kind]) => error instanceof kind)?.[1] ?? 'error';
  if (result === 'error') console.error(error);
  return { result, sqlstate: (error as { code?: unknown }).code, message: String(error) };
}

createInterface({ input: process.stdin })
  .on('line', (line) => {
    const command = JSON.parse(line) as Command;
    void obey(command).catch(resultOf).then((answer) => {
      say({ id: command.id, ...answer });
    });
  })
  .on('close', () => process.exit(0));
