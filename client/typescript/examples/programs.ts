// The programs of docs/languages.md.
//
//   programs.js cron KEY TTL COMMAND...   run a command unless it runs elsewhere
//   programs.js leader KEY TTL NAME       lead, or wait to lead
//   programs.js writer KEY TTL            write the lines of standard input, fenced
//
// TTL is in seconds.  The server is named by the PG* variables, as for psql.
// Exit status: 75 the lock is busy, 76 it was lost.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import { BusyError, LostError, Locks } from 'pg-dlock/pg';

async function cron(locks: Locks, key: string, ttl: number, command: string, args: string[]): Promise<number> {
  return locks.request(key, { ttl, wait: 0 }, async (lock) => {
    const child = spawn(command, args, { stdio: 'inherit' });
    lock.signal.addEventListener('abort', () => child.kill('SIGKILL'));
    const [code] = (await once(child, 'exit')) as [number | null];
    return code ?? 1;
  });
}

async function leader(locks: Locks, key: string, ttl: number, name: string): Promise<never> {
  return locks.elect(key, { ttl, value: name }, async (lock) => {
    for (;;) {
      await lock.fenced((tx) => tx.query('INSERT INTO journal VALUES ($1, $2)', [lock.version, name]));
      await sleep(ttl / 10);
    }
  });
}

async function writer(locks: Locks, key: string, ttl: number): Promise<number> {
  await using lock = await locks.acquire(key, { ttl, wait: 10_000 });
  for await (const line of createInterface({ input: process.stdin })) {
    await lock.fenced((tx) => tx.query('INSERT INTO journal VALUES ($1, $2)', [lock.version, line]));
  }
  return 0;
}

async function main(what = '', key = '', ttl = '', first = '', ...more: string[]): Promise<number> {
  const pool = new pg.Pool();
  pool.on('error', console.error);
  const locks = new Locks(pool);
  const ms = Number(ttl) * 1000;
  try {
    if (what === 'cron') return await cron(locks, key, ms, first, more);
    if (what === 'leader') return await leader(locks, key, ms, first);
    if (what === 'writer') return await writer(locks, key, ms);
    console.error('usage: programs.js cron|leader|writer KEY TTL ...');
    return 2;
  } catch (error) {
    console.error(error);
    return error instanceof BusyError ? 75 : error instanceof LostError ? 76 : 1;
  }
}

process.exit(await main(...process.argv.slice(2)));
