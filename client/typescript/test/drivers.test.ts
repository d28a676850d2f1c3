// What both adapters do with a server.  The conformance suite has the rest: lost answers, a silent server,
// restarts, failover, PgBouncer.

import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import postgres from 'postgres';
import * as onPg from '../src/pg.js';
import * as onPostgres from '../src/postgres.js';
import {
  AskedToYield, BusyError, ClosedError, DeniedError, InvalidArgumentError, LostError, RefusedError,
  type LockEvent, type LocksOptions,
} from '../src/index.js';
import type { Lock, Locks } from '../src/locks.js';
import { eventually, server as startServer, type Server } from './server.js';

type Address = Pick<Server, 'host' | 'port' | 'database' | 'user'>;
/** A client with a pool of its own, and how its fenced transactions write. */
interface Client {
  locks: Locks;
  write: (lock: Lock, line: string) => Promise<unknown>;
  end: () => Promise<void>;
}

const INSERT = 'INSERT INTO journal VALUES ($1, $2)';

const clients: Record<string, (address: Address, options?: LocksOptions, max?: number) => Client> = {
  pg: (address, options, max = 3) => {
    const pool = new pg.Pool({ ...address, max });
    pool.on('error', () => undefined);
    return {
      locks: new onPg.Locks(pool, options),
      write: (lock, line) =>
        (lock as onPg.Lock<pg.PoolClient>).fenced((tx) => tx.query(INSERT, [lock.version, line])),
      end: () => pool.end(),
    };
  },
  postgres: (address, options, max = 3) => {
    const sql = postgres({ ...address, max, onnotice: () => undefined });
    return {
      locks: new onPostgres.Locks(sql, options),
      write: (lock, line) =>
        (lock as onPostgres.Lock<postgres.TransactionSql>).fenced((tx) => tx.unsafe(INSERT, [String(lock.version), line])),
      end: () => sql.end({ timeout: 1 }),
    };
  },
};

let server: Server;
before(async () => {
  server = await startServer();
});
after(() => server.end());

for (const [driver, makeClient] of Object.entries(clients)) {
  describe(driver, { timeout: 300_000 }, () => {
    const made: Client[] = [];
    let number = 0;
    const open = (options?: LocksOptions, address: Address = server, max?: number): Client => {
      const client = makeClient(address, options, max);
      made.push(client);
      return client;
    };
    const key = (): string => `${driver}${String(++number)}`;
    const owner = (name: string): Promise<unknown> => server.sql('SELECT owner FROM dlock_locks WHERE key = $1', name);

    after(async () => {
      for (const { locks, end } of made) {
        await locks.close();
        await end();
      }
      await eventually(
        async () => (await server.sql(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                               AND backend_type = 'client backend'`)) === '1',
        'no connection is left',
      );
    });

    test('request() holds the lock while the body runs, and returns what it returns', async () => {
      const [{ locks }, name] = [open(), key()];
      const result = await locks.request(name, async (lock) => {
        assert.equal(lock.name, name);
        assert.equal(lock.mode, 'exclusive');
        assert.equal(lock.version, BigInt((await server.sql('SELECT version FROM dlock_locks WHERE key = $1', name)) as string));
        assert.ok(lock.held && !lock.signal.aborted && !lock.asked.aborted && lock.timeLeft > 10_000);
        return 7;
      });
      assert.equal(result, 7);
      assert.equal(await owner(name), undefined);
      await assert.rejects(locks.request(name, () => Promise.reject(new RangeError('mine'))), RangeError);
      assert.equal(await owner(name), undefined, 'released after an error, too');
    });

    test('a busy lock: ifAvailable is null, wait is BusyError, signal is its reason', async () => {
      const [{ locks }, name] = [open(), key()];
      const lock = await locks.acquire(name, { ttl: 60_000 });
      assert.equal(await locks.acquire(name, { ifAvailable: true }), null);
      assert.equal(await locks.request(name, { ifAvailable: true }, (none) => none), null);
      await assert.rejects(locks.acquire(name, { wait: 0 }), BusyError);
      await assert.rejects(locks.acquire(name, { wait: 300 }), BusyError);
      const abort = new AbortController();
      const waits = locks.acquire(name, { signal: abort.signal });
      await eventually(() => server.sql('SELECT count(*) > 0 FROM dlock_waiters WHERE key = $1', name), 'it waits');
      abort.abort(new RangeError('changed my mind'));
      await assert.rejects(waits, RangeError);
      await eventually(
        async () => (await server.sql('SELECT count(*) FROM dlock_waiters WHERE key = $1', name)) === '0',
        'the request is withdrawn',
      );
      await lock.release();
      await lock.release();
    });

    test('who waits is granted in order, without a connection', async () => {
      const [{ locks }, name] = [open({}, server, 1), key()];
      const first = await locks.acquire(name, { ttl: 60_000 });
      const order: number[] = [];
      const waits: Promise<void>[] = [];
      for (const i of [1, 2, 3]) {
        waits.push(
          locks.request(name, () => {
            order.push(i);
          }),
        );
        await eventually(
          () => server.sql('SELECT count(*) = $2 FROM dlock_waiters WHERE key = $1', name, i),
          'it waits',
        );
      }
      await first.release();
      await Promise.all(waits);
      assert.deepEqual(order, [1, 2, 3]);
    });

    test('readers, places, several names', async () => {
      const [{ locks }, name] = [open(), key()];
      const readers = await Promise.all([1, 2].map(() => locks.acquire(name, { mode: 'shared' })));
      assert.equal(await locks.acquire(name, { ifAvailable: true }), null);
      const { held } = await locks.query(name);
      assert.deepEqual(held.map(({ mode, state }) => [mode, state]), [['shared', 'held'], ['shared', 'held']]);
      for (const reader of readers) await reader.release();
      const places = await Promise.all([1, 2].map(() => locks.acquire(name, { slots: 2 })));
      assert.equal(await locks.acquire(name, { slots: 2, ifAvailable: true }), null);
      for (const place of places) await place.release();
      const names = [`${name}:b"\\`, `${name}:a`];
      const both = await locks.acquire(names);
      assert.deepEqual([...both.versions.keys()], names);
      assert.equal(await locks.acquire(`${name}:a`, { ifAvailable: true }), null);
      const waits = locks.acquire([`${name}:a`, `${name}:c`]);
      await both.release();
      await (await waits).release();
    });

    test('it is renewed, and a loss is told', async () => {
      const events: LockEvent[] = [];
      const [client, name] = [open({ onEvent: (event) => events.push(event) }), key()];
      const lock = await client.locks.acquire(name, { ttl: 3_000 });
      await eventually(
        () => server.sql('SELECT refreshed_at - acquired_at > ttl FROM dlock_locks WHERE key = $1', name),
        'it is renewed beyond its TTL',
      );
      await client.write(lock, 'written');
      const lost = new Promise((resolve) => {
        lock.signal.addEventListener('abort', resolve);
      });
      await server.sql(`SELECT dlock_force_release($1, 'test')`, name);
      await lost;
      assert.ok(lock.signal.reason instanceof LostError);
      assert.equal(lock.held, false);
      assert.equal(lock.timeLeft, 0);
      await assert.rejects(client.write(lock, 'not written'), LostError);
      await assert.rejects(lock.release(), LostError);
      assert.equal(await server.sql('SELECT string_agg(line, $1) FROM journal', ' '), 'written');
      await server.sql('TRUNCATE journal');
      assert.deepEqual([...new Set(events.map(({ type }) => type))], ['granted', 'renewed', 'lost']);
    });

    test('the fence finds a loss that nobody has told yet', async () => {
      const [client, name] = [open(), key()];
      const lock = await client.locks.acquire(name, { ttl: 3_600_000 });
      await server.sql(`SELECT dlock_force_release($1, 'test')`, name);
      await assert.rejects(client.write(lock, 'not written'), LostError);
      assert.equal(lock.signal.aborted, true);
      assert.equal(await server.sql('SELECT count(*) FROM journal'), '0');
    });

    test('request() fails of a loss that its body did not notice', async () => {
      const [{ locks }, name] = [open(), key()];
      const body = async (): Promise<void> => {
        await server.sql(`SELECT dlock_force_release($1, 'test')`, name);
      };
      await assert.rejects(locks.request(name, body), LostError);
    });

    test('await using releases, and fails of a loss that the block did not notice', async () => {
      const [{ locks }, name] = [open(), key()];
      {
        await using lock = await locks.acquire(name);
        assert.ok(lock.held);
      }
      assert.equal(await owner(name), undefined);
      await assert.rejects(async () => {
        await using lock = await locks.acquire(name);
        await server.sql(`SELECT dlock_force_release($1, 'test')`, lock.name);
      }, LostError);
      await assert.rejects(async () => {
        await using lock = await locks.acquire(name);
        await server.sql(`SELECT dlock_force_release($1, 'test')`, lock.name);
        await eventually(() => lock.signal.aborted, 'it is told');
        lock.signal.throwIfAborted();
      }, LostError);
    });

    test('a request with a higher priority asks the holder to yield', async () => {
      const [{ locks }, name] = [open(), key()];
      const lock = await locks.acquire(name, { ttl: 60_000, cleanup: 60_000 });
      const asked = new Promise((resolve) => {
        lock.asked.addEventListener('abort', resolve);
      });
      const higher = locks.acquire(name, { priority: 5, wait: 120_000 });
      await asked;
      assert.ok(lock.asked.reason instanceof AskedToYield && lock.asked.reason.reason === 'priority');
      assert.ok(lock.held && lock.timeLeft <= 60_000);
      await lock.release();
      await (await higher).release();
    });

    test('a holder that does not yield keeps its lock, but steal takes it', async () => {
      const [{ locks }, name] = [open(), key()];
      const lock = await locks.acquire(name, { ttl: 60_000, cleanup: 500 });
      await assert.rejects(locks.acquire(name, { priority: 5, wait: 60_000 }), RefusedError);
      assert.ok(lock.held);
      const thief = await locks.acquire(name, { steal: true });
      await eventually(() => lock.signal.aborted, 'the loss is told');
      assert.ok(thief.version > lock.version);
      await thief.release();
    });

    test('maxHold asks, then ends the lock', async () => {
      const [{ locks }, name] = [open(), key()];
      const lock = await locks.acquire(name, { ttl: 1_500, maxHold: 3_000 });
      await eventually(() => lock.asked.aborted, 'it is asked');
      assert.ok(lock.asked.reason instanceof AskedToYield && lock.asked.reason.reason === 'maxHold');
      await eventually(() => lock.signal.aborted, 'it is lost');
    });

    test('atLeast keeps the key busy', async () => {
      const [{ locks }, name] = [open(), key()];
      await locks.request(name, { atLeast: 60_000 }, () => undefined);
      assert.equal(await locks.acquire(name, { ifAvailable: true }), null);
      assert.equal((await locks.query(name)).held[0]?.state, 'cooling');
    });

    test('elect() leads again after a loss, and observe() sees it', async () => {
      const [{ locks }, name, abort] = [open(), key(), new AbortController()];
      const seen: (string | null)[] = [];
      const observer = (async () => {
        for await (const leader of locks.observe(name, { every: 20, signal: abort.signal })) seen.push(leader?.value ?? null);
      })();
      const terms: bigint[] = [];
      await eventually(() => seen.length > 0, 'nobody leads');
      const result = await locks.elect(name, { value: 'one' }, async (lock) => {
        terms.push(lock.version);
        if (terms.length === 1) {
          await server.sql(`SELECT dlock_force_release($1, 'test')`, name);
          await eventually(() => lock.signal.aborted, 'it is told');
          lock.signal.throwIfAborted();
        }
        await eventually(() => seen.at(-1) === 'one', 'the leader is seen');
        await lock.setValue('two');
        await eventually(() => seen.at(-1) === 'two', 'the new value is seen');
        return 'resigned';
      });
      assert.equal(result, 'resigned');
      assert.ok(terms.length === 2 && (terms[1] ?? 0n) > (terms[0] ?? 0n));
      await eventually(() => seen.at(-1) === null, 'nobody leads');
      abort.abort();
      await assert.rejects(observer, { name: 'AbortError' });
    });

    test('limit()', async () => {
      const [{ locks }, name] = [open(), key()];
      assert.equal(await locks.limit(name, 2, 3_600_000), 0);
      assert.equal(await locks.limit(name, 2, 3_600_000), 0);
      const left = await locks.limit(name, 2, 3_600_000);
      assert.ok(left > 0 && left <= 3_600_000);
    });

    test('a connection of its own is fenced by a setting', async () => {
      const [{ locks }, name] = [open(), key()];
      const conn = new pg.Client(server);
      await conn.connect();
      const lock = await locks.acquire(name);
      await conn.query(`SELECT set_config('dlock.fence', $1, false)`, [lock.fenceSetting]);
      await conn.query(INSERT, [lock.version, 'ours']);
      await lock.release();
      await assert.rejects(conn.query(INSERT, [lock.version, 'late']), { code: 'LK001' });
      await conn.end();
      assert.equal(await server.sql('SELECT string_agg(line, $1) FROM journal', ' '), 'ours');
      await server.sql('TRUNCATE journal');
    });

    test('answers are not asked for again', async () => {
      const [{ locks }, name] = [open(), key()];
      for (const options of [{ ttl: 0 }, { ttl: NaN }, { wait: -1 }, { slots: -3 }, { ttl: 1e12 }, { atLeast: 9_000, ttl: 5_000 }]) {
        await assert.rejects(locks.acquire(name, options), InvalidArgumentError, JSON.stringify(options));
      }
      await assert.rejects(locks.acquire(''), InvalidArgumentError);
      await assert.rejects(locks.acquire([name, name]), InvalidArgumentError);
      await assert.rejects(locks.acquire(name, { steal: true, ifAvailable: true }), InvalidArgumentError);
      await server.sql(`DO $$ BEGIN CREATE ROLE nobody LOGIN; EXCEPTION WHEN duplicate_object THEN END $$`);
      await server.sql(`SELECT dlock_policy($1, 'nobody', allow => false)`, name);
      await assert.rejects(open({}, { ...server, user: 'nobody' }).locks.acquire(name), DeniedError);
      assert.equal(await owner(name), undefined);
    });

    test('connections that end are replaced', async () => {
      const [{ locks }, name] = [open(), key()];
      const lock = await locks.acquire(name, { ttl: 6_000 });
      const waits = locks.acquire(name);
      await eventually(() => server.sql('SELECT count(*) > 0 FROM dlock_waiters WHERE key = $1', name), 'it waits');
      const { version } = lock;
      await server.sql(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                        WHERE datname = current_database() AND pid <> pg_backend_pid()`);
      await eventually(
        () => server.sql('SELECT refreshed_at - acquired_at > ttl FROM dlock_locks WHERE version = $1', version),
        'it is renewed',
      );
      await lock.release();
      await (await waits).release();
    });

    test('close() releases nothing, tells holders, and ends waits', async () => {
      const [{ locks }, name] = [open(), key()];
      const lock = await locks.acquire(name, { ttl: 60_000 });
      const waits = locks.acquire(name);
      const ended = assert.rejects(waits, ClosedError);
      await eventually(() => server.sql('SELECT count(*) > 0 FROM dlock_waiters WHERE key = $1', name), 'it waits');
      await locks.close();
      await ended;
      assert.ok(lock.signal.aborted && !lock.held);
      assert.notEqual(await owner(name), undefined);
      await assert.rejects(locks.acquire(name), ClosedError);
      await assert.rejects(lock.release(), LostError);
    });

    test('a lock that is collected is not renewed, and not released', async () => {
      const [{ locks }, name] = [open(), key()];
      await (async () => {
        await locks.acquire(name, { ttl: 3_000 });
      })();
      const warned = new Promise((resolve) => process.once('warning', resolve));
      await eventually(async () => {
        gc?.();
        await sleep(10);
        return Promise.race([warned, Promise.resolve(false)]);
      }, 'it is collected');
      assert.notEqual(await owner(name), undefined);
      assert.equal(await server.sql(`SELECT dlock_acquire($1, '1 s', 'next', wait => '1 min') > 0`, name), true);
    });
  });
}
