// A program of a user: compiled against the tarball, and run without a server.

import pg from 'pg';
import postgres from 'postgres';
import { BusyError, type Lock } from 'pg-dlock';
import { Locks } from 'pg-dlock/pg';
import { Locks as PostgresLocks } from 'pg-dlock/postgres';
import { FakeServer } from 'pg-dlock/testing';

/** What a program does with its locks, whichever they are. */
async function nightly(locks: Locks): Promise<bigint> {
  return locks.request('nightly', { ttl: 30_000, wait: 0 }, async (lock: Lock<pg.PoolClient>) => {
    await lock.fenced((tx) => tx.query('INSERT INTO journal VALUES ($1)', [lock.version]));
    return lock.version;
  });
}

export async function never(): Promise<void> {
  await using locks = new PostgresLocks(postgres());
  await using lock = await locks.acquire('nightly', { ifAvailable: true });
  await lock?.fenced((tx) => tx`INSERT INTO journal VALUES (${String(lock.version)})`);
  await nightly(new Locks(new pg.Pool()));
}

const written: unknown[] = [];
const server = new FakeServer();
await using locks = server.locks({ query: (...query: unknown[]) => written.push(query) } as unknown as pg.PoolClient);
if ((await nightly(locks)) !== 1n || written.length !== 1) throw new Error('nothing was written');
server.hold('nightly');
const error: unknown = await nightly(locks).catch((e: unknown) => e);
if (!(error instanceof BusyError)) throw new Error('the lock is not busy');
