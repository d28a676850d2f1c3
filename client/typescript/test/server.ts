// A PostgreSQL of our own with dlock in it.  PGHOST and PGPORT name one that is there already; otherwise
// one is made of the programs of PG_CONFIG and of what `make` has built in DLOCK_BUILD (default: the tree).
// Servers do not run as root: if root runs the tests, the server belongs to user postgres.

import { execFileSync } from 'node:child_process';
import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer, type AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';

const root = process.getuid?.() === 0;
const id = (option: string): number => Number(execFileSync('id', [option, 'postgres'], { encoding: 'utf8' }));
const user = root ? { uid: id('-u'), gid: id('-g') } : {};

export interface Server {
  host: string;
  port: number;
  database: string;
  user: string;
  /** The first value of the first row, of a superuser. */
  sql(query: string, ...params: unknown[]): Promise<unknown>;
  end(): Promise<void>;
}

export async function eventually<T>(condition: () => Promise<T> | T, what: string): Promise<T> {
  const until = Date.now() + 60_000;
  while (Date.now() < until) {
    const found = await condition();
    if (found) return found;
    await sleep(20);
  }
  throw new Error(`it did not happen in time: ${what}`);
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await new Promise((resolve) => server.once('listening', resolve));
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}

/** A copy of PostgreSQL's folders, because an extension must be in one of them. */
function install(folder: string): string {
  const config = (option: string): string =>
    execFileSync(process.env['PG_CONFIG'] ?? 'pg_config', [option], { encoding: 'utf8' }).trim();
  const build = process.env['DLOCK_BUILD'] ?? join(import.meta.dirname, '../../../..');
  const [bin, lib, share] = [config('--bindir'), config('--pkglibdir'), config('--sharedir')];
  for (const from of [bin, lib, share]) {
    cpSync(from, join(folder, from), { recursive: true, verbatimSymlinks: true, filter: (f) => !/bitcode|pgxs/.test(f) });
  }
  cpSync(join(build, 'dlock.so'), join(folder, lib, 'dlock.so'));
  const scripts = readdirSync(join(build, 'sql')).filter((name) => /^dlock--.*\.sql$/.test(name));
  for (const name of scripts) cpSync(join(build, 'sql', name), join(folder, share, 'extension', name));
  cpSync(join(build, 'dlock.control'), join(folder, share, 'extension/dlock.control'));
  return join(folder, bin);
}

async function start(): Promise<Server> {
  const folder = mkdtempSync(join(tmpdir(), 'dlock-ts.'));
  const bin = install(folder);
  const data = join(folder, 'data');
  const port = await freePort();
  if (root) execFileSync('chown', ['-hR', 'postgres:', folder]);
  const run = (program: string, ...options: string[]): void => {
    execFileSync(join(bin, program), options, { ...user, cwd: folder, stdio: 'ignore' });
  };
  run('initdb', '-D', data, '-A', 'trust', '-U', 'postgres', '--no-sync');
  writeFileSync(
    join(data, 'postgresql.auto.conf'),
    `shared_preload_libraries = 'dlock'\nport = ${String(port)}\nlisten_addresses = '127.0.0.1'\n` +
      `unix_socket_directories = ''\nfsync = off\nmax_connections = 60\n`,
  );
  run('pg_ctl', '-D', data, '-l', join(folder, 'log'), '-w', 'start');
  process.once('SIGTERM', () => process.exit(1));
  process.once('exit', () => {
    run('pg_ctl', '-D', data, '-m', 'immediate', '-w', 'stop');
    rmSync(folder, { recursive: true, force: true });
  });
  return connectTo({ host: '127.0.0.1', port, database: 'postgres', user: 'postgres' });
}

async function connectTo(address: Omit<Server, 'sql' | 'end'>): Promise<Server> {
  const admin = new pg.Client({ ...address, application_name: 'test' });
  await admin.connect();
  await admin.query('SET client_min_messages = error');
  await admin.query('CREATE EXTENSION IF NOT EXISTS dlock');
  const script = process.env['DLOCK_TEST_SQL'];
  if (script !== undefined) await admin.query(readFileSync(script, 'utf8'));
  await admin.query('CREATE TABLE IF NOT EXISTS journal (version bigint, line text)');
  return {
    ...address,
    sql: async (query, ...params) => {
      const result = await admin.query<unknown[]>({ text: query, values: params, rowMode: 'array' });
      return result.rows[0]?.[0];
    },
    end: () => admin.end(),
  };
}

export async function server(): Promise<Server> {
  const { PGHOST: host, PGPORT: port, PGDATABASE: database = 'postgres', PGUSER: name = 'postgres' } = process.env;
  if (host === undefined || port === undefined) return start();
  return connectTo({ host, port: Number(port), database, user: name });
}
