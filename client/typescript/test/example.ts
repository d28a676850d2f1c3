// The programs of docs/languages.md.  test/drivers.test.ts runs them.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { LostError } from '../src/index.js';
import type { Locks } from '../src/pg.js';

export async function job(locks: Locks, name: string, command: string, args: string[]): Promise<number> {
  return locks.request(name, { ifAvailable: true, ttl: 30_000 }, async (lock) => {
    if (lock === null) return 75; // it runs elsewhere
    // what the signal ends has a tenth of the TTL until another one may begin
    const child = spawn(command, args, { stdio: 'inherit', signal: lock.signal });
    const [code] = (await once(child, 'exit')) as [number | null];
    return code ?? 1;
  });
}

export async function lead(locks: Locks, name: string, address: string, signal: AbortSignal): Promise<void> {
  await locks.elect(name, { value: address, signal }, async (lock) => {
    while (!signal.aborted) {
      await lock.fenced((tx) => tx.query('INSERT INTO journal VALUES ($1, $2)', [lock.version, address]));
      await sleep(1_000);
    }
  });
}

export async function write(locks: Locks, name: string, lines: AsyncIterable<string>): Promise<boolean> {
  await using lock = await locks.acquire(name, { ttl: 30_000 });
  try {
    for await (const line of lines) {
      await lock.fenced((tx) => tx.query('INSERT INTO journal VALUES ($1, $2)', [lock.version, line]));
    }
    return true;
  } catch (error) {
    if (!(error instanceof LostError)) throw error;
    return false; // nothing was written
  }
}
