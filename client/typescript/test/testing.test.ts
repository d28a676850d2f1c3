// The fake for unit tests, and with it what a client decides by itself.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { AskedToYield, BusyError, DlockError, InvalidArgumentError, LostError, UnreachableError, type LockEvent } from '../src/index.js';
import { Locks } from '../src/locks.js';
import { HELLO, FEATURES, REFRESH, RENEW, TRY, type Param, type Row } from '../src/protocol.js';
import type { Connection } from '../src/source.js';
import { FakeServer } from '../src/testing.js';

const aborted = (signal: AbortSignal): Promise<unknown> =>
  new Promise((resolve) => {
    if (signal.aborted) resolve(undefined);
    signal.addEventListener('abort', resolve);
  });

test('the fake grants, refuses and releases', async () => {
  const server = new FakeServer();
  await using locks = server.locks();
  await locks.request('a', async (lock) => {
    assert.equal(lock.version, 1n);
    assert.equal(await locks.acquire('a', { ifAvailable: true }), null);
    await assert.rejects(locks.acquire('a', { wait: 20 }), BusyError);
  });
  const readers = [await locks.acquire('a', { mode: 'shared' }), await locks.acquire('a', { mode: 'shared' })];
  assert.equal(await locks.acquire(['b', 'a'], { ifAvailable: true }), null);
  assert.deepEqual((await locks.query('a')).held.map(({ mode, slots }) => [mode, slots]), Array(2).fill(['shared', Infinity]));
  for (const reader of readers) await reader.release();
  const both = await locks.acquire(['b', 'a']);
  assert.equal(both.versions.size, 2);
  await both.release();
  server.hold('a');
  await assert.rejects(locks.acquire('a', { wait: 0 }), BusyError);
  server.take('a');
  await (await locks.acquire('a', { slots: 2 })).release();
});

test('the fake takes a lock away, and asks to yield', async () => {
  const server = new FakeServer();
  const written: string[] = [];
  await using locks = server.locks({ write: (line: string) => written.push(line) });
  const lock = await locks.acquire('a');
  server.askToYield('a');
  await aborted(lock.asked);
  assert.ok(lock.asked.reason instanceof AskedToYield && lock.held);
  await lock.fenced(async (tx) => {
    tx.write('one');
    await lock.setValue('10.0.0.1');
  });
  assert.equal((await locks.leader('a'))?.value, '10.0.0.1');
  server.take('a');
  await aborted(lock.signal);
  await assert.rejects(lock.fenced(async (tx) => Promise.resolve(tx.write('two'))), LostError);
  await assert.rejects(lock.release(), LostError);
  assert.deepEqual(written, ['one']);
  assert.equal(await locks.leader('a'), null);
  await assert.rejects(locks.request('a', () => { server.take('a'); }), LostError);
});

test('the fake has atLeast and limits', async () => {
  await using locks = new FakeServer().locks();
  await locks.request('a', { atLeast: 60_000 }, () => undefined);
  assert.equal(await locks.acquire('a', { ifAvailable: true }), null);
  assert.equal(await locks.limit('mail', 1, 60_000), 0);
  const left = await locks.limit('mail', 1, 60_000);
  assert.ok(left > 0 && left <= 60_000);
  assert.equal(await locks.limit('slow', 1, 30), 0);
  assert.equal(await locks.limit('slow', 1, 30, { wait: 60_000 }), 0);
});

test('arguments', async () => {
  await using locks = new FakeServer().locks();
  for (const options of [{ ttl: 0 }, { ttl: Infinity }, { wait: NaN }, { cleanup: -1 }, { mode: 'shared', slots: 2 } as const]) {
    await assert.rejects(locks.acquire('a', options), InvalidArgumentError);
  }
  for (const name of ['', [], ['a', '']]) await assert.rejects(locks.acquire(name), InvalidArgumentError);
  assert.throws(() => new FakeServer().locks(undefined, { timeout: 0 }), InvalidArgumentError);
  await (await locks.acquire('a', { ttl: 1e12 })).release();
  await assert.rejects(locks.request('a', {}, undefined as never), InvalidArgumentError);
  await assert.rejects(locks.acquire('a', { signal: AbortSignal.abort(new RangeError()) }), RangeError);
});

test('an onEvent that fails is a warning', async () => {
  const warned = new Promise<Error>((resolve) => process.once('warning', resolve));
  await using locks = new FakeServer().locks(undefined, {
    onEvent: () => {
      throw new RangeError('in the metrics');
    },
  });
  await locks.request('a', () => undefined);
  assert.match(String(await warned), /in the metrics/);
});

/** A server whose answers the test writes. */
function scripted(answer: (sql: string, params: readonly Param[]) => Row[] | Promise<Row[]>, events: LockEvent[] = []): Locks {
  const connection = (): Connection => ({
    pid: undefined,
    query: async (text, params, sent) => {
      const sql = text.replaceAll('fake.', '@.');
      sent();
      if (sql === HELLO) return [['1', 'fake']];
      if (sql === FEATURES) return [['fake', '1', '{}']];
      return answer(sql, params);
    },
    destroy: () => undefined,
  });
  return new Locks(
    { borrow: connection, open: connection, transaction: <T>() => Promise.reject<T>(new Error('no transactions')) },
    { timeout: 300, onEvent: (event) => events.push(event) },
  );
}
const refused = (code: string): Error => Object.assign(new Error(code), { code, severity: 'ERROR' });

test('no answer: the same owner asks again, until the server was silent for too long', async () => {
  const owners = new Set<unknown>();
  let asked = 0;
  await using locks = scripted((sql, params) => {
    if (sql !== TRY) return [['released']];
    owners.add(params[2]);
    if (++asked === 1) throw Object.assign(new Error('read ECONNRESET'), { code: 'ECONNRESET' });
    if (asked === 2) throw refused('57P01');
    return [['17']];
  });
  const lock = await locks.acquire('a');
  assert.equal(lock.version, 17n);
  assert.equal(owners.size, 1);
  await lock.release();
  await using silent = scripted(() => new Promise(() => undefined));
  await assert.rejects(silent.acquire('a'), UnreachableError);
});

test('a TTL shorter than an answer takes: that ends, too', async () => {
  await using locks = scripted(async (sql) => {
    if (sql === TRY) {
      await sleep(5);
      return [['7']];
    }
    return [[sql === REFRESH ? null : 'released']];
  });
  await assert.rejects(locks.acquire('a', { ttl: 1 }), UnreachableError);
});

test('an answer that is an error is not asked for again', async () => {
  let asked = 0;
  await using locks = scripted(() => {
    asked++;
    throw refused('57014');
  });
  await assert.rejects(locks.acquire('a'), (error) => error instanceof DlockError && error.code === '57014');
  assert.equal(asked, 1);
});

test('the keeper: a lock whose renewal is refused does not take the others with it', async () => {
  const events: LockEvent[] = [];
  let version = 0;
  await using locks = scripted((sql, [keys]) => {
    if (sql === TRY) return [[String(++version)]];
    if (sql !== RENEW) return [['released']];
    if (String(keys).includes('bad')) throw refused('42501');
    return String(keys).split(',').map((_, i) => [String(i + 1), '3000', 'held', null]);
  }, events);
  const [good, bad] = [await locks.acquire('good', { ttl: 3_000 }), await locks.acquire('bad', { ttl: 3_000 })];
  await aborted(bad.signal);
  assert.ok(good.held, 'which would have been lost first');
  assert.ok(events.some(({ type, name }) => type === 'danger' && name === 'bad'));
  assert.ok(events.some(({ type, name }) => type === 'renewed' && name === 'good'));
});

test('the keeper: a silent server cannot delay the loss', async () => {
  let version = 0;
  await using locks = scripted((sql) => (sql === TRY ? [[String(++version)]] : new Promise(() => undefined)));
  const began = performance.now();
  const lock = await locks.acquire('a', { ttl: 3_000 });
  await aborted(lock.signal);
  assert.ok(performance.now() - began >= 2_690);
  assert.match(String(lock.signal.reason), /deadline/);
});
