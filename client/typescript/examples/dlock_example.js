// dlock from JavaScript: node-postgres and plain SQL.
//
//   node dlock_example.js cron KEY TTL COMMAND...   run a command unless it runs elsewhere
//   node dlock_example.js leader KEY TTL NAME       lead, or wait to lead
//   node dlock_example.js writer KEY TTL            write the lines of standard input, fenced
//
// TTL is in seconds.  The server is named by the PG* variables, as for psql.
// Exit status: 75 the lock is busy, 76 it was lost.
'use strict';

const { Client } = require('pg');
const { spawn } = require('child_process');
const { randomUUID } = require('crypto');
const readline = require('readline');

const BUSY = 75, LOST = 76;
const now = () => performance.now() / 1000; // monotonic, unlike Date.now()
const sleep = (seconds) => new Promise((done) => setTimeout(done, seconds * 1000));

async function connect(timeout) {
  // query_timeout: a server that does not answer is to be noticed
  const client = new Client({
    connectionTimeoutMillis: 2000, query_timeout: timeout * 1000, keepAlive: true,
  });
  client.on('error', () => {}); // the query that is under way, or the next one, fails too
  await client.connect();
  return client;
}

// A bigint comes as a string, and may stay one.
async function ask(client, sql, ...args) {
  const result = await client.query({ text: sql, values: args, rowMode: 'array' });
  return result.rows[0][0];
}

// The version, or null.  A lost answer is asked for again: the same owner gets
// the same grant.
async function acquire(key, ttl, owner, wait) {
  const giveUp = now() + wait + ttl;
  for (;;) {
    let client;
    try {
      client = await connect(wait + ttl);
      return await ask(client,
        `SELECT dlock_acquire($1::text, make_interval(secs => $2::float8), owner => $3::text,
                              wait => make_interval(secs => $4::float8))`,
        key, ttl, owner, wait);
    } catch (error) {
      // Only the server's errors have a severity; 57P: it goes down or starts,
      // 53300: it is full.
      const answered = error.severity && !/^(57P|53300)/.test(error.code);
      if (answered || now() > giveUp) throw error;
      await sleep(0.2);
    } finally {
      if (client) client.end().catch(() => {});
    }
  }
}

// Renews a lock every third of its TTL, on a connection of its own, and knows
// when it can no longer be relied on.  The timer needs the event loop: work
// that computes for long belongs in a worker thread or another process.
class Lease {
  constructor(key, version, ttl) {
    Object.assign(this, { key, version, ttl, deadline: 0, gone: false, client: null });
  }

  // The first renewal is at once: the acquire may have waited, so when the
  // grant began is not known here.
  static async start(key, version, ttl) {
    const lease = new Lease(key, version, ttl);
    await lease.renew();
    lease.schedule();
    return lease;
  }

  schedule() {
    if (this.gone || this.stopped) return;
    const pause = this.client ? this.ttl / 3 : this.ttl / 20;
    this.timer = setTimeout(() => this.renew().then(() => this.schedule()), pause * 1000);
  }

  async renew() {
    const sent = now();
    try {
      this.client = this.client || await connect(this.ttl / 3);
      const expiry = await ask(this.client, 'SELECT dlock_refresh($1::text, $2::bigint)', this.key, this.version);
      if (expiry === null) this.gone = true;
      // From before it was sent, and a tenth less: the server ends later.
      else this.deadline = sent + 0.9 * this.ttl;
    } catch (error) {
      // Not known: the deadline stands, a new connection may still make it.
      if (this.client) this.client.end().catch(() => {});
      this.client = null;
    }
  }

  lost() {
    return this.gone || now() >= this.deadline;
  }

  stop() {
    this.stopped = true;
    clearTimeout(this.timer);
    if (this.client) this.client.end().catch(() => {});
  }

  async release() {
    this.stop();
    const client = await connect(this.ttl);
    await ask(client, 'SELECT dlock_release($1::text, $2::bigint)', this.key, this.version);
    await client.end();
  }
}

// False if the lock is not ours any more; then nothing was written.
async function fencedWrite(client, key, version, line) {
  try {
    await client.query('BEGIN');
    await client.query('SELECT dlock_fence($1::text, $2::bigint)', [key, version]);
    await client.query('INSERT INTO journal (version, line) VALUES ($1, $2)', [version, line]);
    await client.query('COMMIT');
    return true;
  } catch (error) {
    if (error.code !== 'LK001') throw error;
    await client.query('ROLLBACK');
    return false;
  }
}

async function cron(key, ttl, command) {
  const version = await acquire(key, ttl, randomUUID(), 0);
  if (version === null) return BUSY;
  const lease = await Lease.start(key, version, ttl);
  if (lease.lost()) return LOST;
  const child = spawn(command[0], command.slice(1), { stdio: 'inherit' });
  const ended = new Promise((done, failed) => {
    child.on('error', failed);
    child.on('exit', (code) => done(code === null ? 1 : code));
  });
  while (await Promise.race([ended, sleep(ttl / 100).then(() => null)]) === null) {
    if (!lease.lost()) continue;
    // What is left until the server's expiry is a tenth of the TTL.
    child.kill('SIGTERM');
    const timer = setTimeout(() => child.kill('SIGKILL'), ttl * 1000 / 20);
    await ended;
    clearTimeout(timer);
    return LOST;
  }
  await lease.release();
  return ended;
}

async function leader(key, ttl, name) {
  for (;;) {
    // unique to this run, so that a restarted process is another candidate
    const version = await acquire(key, ttl, `${name} ${randomUUID()}`, 60);
    if (version === null) continue;
    const lease = await Lease.start(key, version, ttl);
    const client = await connect(ttl);
    while (!lease.lost() && await fencedWrite(client, key, version, name)) await sleep(ttl / 10);
    lease.stop();
    await client.end();
  }
}

async function writer(key, ttl) {
  const version = await acquire(key, ttl, randomUUID(), 10);
  if (version === null) return BUSY;
  const lease = await Lease.start(key, version, ttl);
  const client = await connect(ttl);
  for await (const line of readline.createInterface({ input: process.stdin })) {
    // No lease.lost() here: the fence knows better.
    if (!await fencedWrite(client, key, version, line)) {
      console.error('LK001: the lock was lost, nothing was written');
      return LOST;
    }
  }
  await lease.release();
  return 0;
}

const [what, key, ttl, ...rest] = process.argv.slice(2);
const run = {
  cron: () => cron(key, +ttl, rest),
  leader: () => leader(key, +ttl, rest[0]),
  writer: () => writer(key, +ttl),
}[what];
if (!run || !(+ttl > 0)) {
  console.error('usage: dlock_example.js cron|leader|writer KEY TTL ...');
  process.exit(2);
}
run().then((status) => process.exit(status), (error) => {
  console.error(error);
  process.exit(1);
});
