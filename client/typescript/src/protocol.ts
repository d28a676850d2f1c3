// The protocol of docs/protocol.md: times, errors and statements.  Nothing here keeps state or
// talks to a server.

import { randomBytes } from 'node:crypto';
import { uptime } from 'node:os';

// Times, in milliseconds or as parts of the TTL
export const TTL = 20_000; // unless the caller names one
export const TIMEOUT = 10_000; // how long the server may be silent
export const LEASE = 0.9; // a lock is ours for this part of its TTL after the question was sent
export const DANGER = 0.6; // after this part without a renewal the program is warned
export const PERIOD = 1 / 3; // of renewals, with a jitter of a tenth
export const TOGETHER = 0.2; // what is due this soon is renewed together with what is due now
export const ANSWER = 1 / 3; // how long the server may take to answer a renewal
export const CONFIRM = 0.25; // a grant whose answer took longer is confirmed by a refresh
export const REFUSED = 0.1; // until the next try after the server refused a renewal
export const CLAIM_TTL = 10_000; // the longest TTL of a ticket's grant until it is claimed
export const POLL = 250; // between questions about tickets where there is no LISTEN
export const OVERDUE = 1_000; // how long the server may take to say that a wait is over
export const SHORT = 100; // a lock that is held for less needs no connection for its renewal
export const IDLE = 5_000; // the connection for renewals is closed after so long without a lock
export const TICK = 1_000; // the longest sleep: timers do not count the time of a suspension
export const MAX_TIMER = 2 ** 31 - 1; // a longer one ends at once
export const HEAR = { pause: 250, burst: 4 }; // questions that events lead to: rate, and at once
export const BACKOFF = { first: 50, last: 1_000 }; // pauses between two tries
export const ABANDON = { first: 200, last: 60_000 };
export const MAX_BATCH = 10_000;
export const MAX_EARLY = 256;
export const MAX_TICKET_BYTES = 1_024;

const RESOLUTION = 10; // of Linux's uptime
let offset = 0;
let lookAt = 0;

/**
 * Milliseconds on a clock that runs while the machine is suspended, as leases do.  Linux's
 * monotonic clock stands still then.  Its uptime does not, but is rounded down, so the largest
 * difference that was seen is the best one; and it costs more than all else, so it is not read more
 * often than it changes.
 */
export function clock(): number {
  const now = performance.now();
  if (now >= lookAt && process.platform === 'linux') {
    lookAt = now + RESOLUTION;
    offset = Math.max(offset, uptime() * 1000 - now);
  }
  return now + offset;
}

/** Unique to one request.  Two requests with the same owner would share one grant. */
export const newOwner = (): string => randomBytes(16).toString('hex');
export const jitter = (ms: number): number => ms * (0.9 + 0.2 * Math.random());

// Errors

/** Base of all errors.  `code` is the server's SQLSTATE, if it has answered. */
export class DlockError extends Error {
  readonly code: string | undefined;

  constructor(message: string, options: ErrorOptions & { code?: string | undefined } = {}) {
    super(message, options);
    this.name = new.target.name;
    this.code = options.code;
  }
}

/** Another client holds the lock, and the wait is over. */
export class BusyError extends DlockError {}
/** The lock was held and is not any more.  Do not continue; do not repeat with this version. */
export class LostError extends DlockError {}
/** A holder of a lower priority did not yield in time (55P03). */
export class RefusedError extends DlockError {}
/** Requests wait for each other (40P01). */
export class DeadlockError extends DlockError {}
/** A missing privilege, or a policy (42501). */
export class DeniedError extends DlockError {}
/** The extension is missing, too old or not preloaded, or it lacks a feature. */
export class NotReadyError extends DlockError {}
/** The server rejected an argument (22xxx), or the client did. */
export class InvalidArgumentError extends DlockError {}
/** No answer: it is unknown whether the statement took effect. */
export class UnreachableError extends DlockError {}
/** These locks are closed. */
export class ClosedError extends DlockError {}

const NOT_READY = new Set(['55000', '42883', '3F000', '42P01', '42704', '42725', '0A000']);

function classOf(code: string | undefined): typeof DlockError {
  if (code === undefined || /^(08|57P0|25006|25P04|53300)/.test(code)) return UnreachableError;
  if (code.startsWith('22')) return InvalidArgumentError;
  if (code === '42501' || code === '3D000' || code.startsWith('28')) return DeniedError;
  if (NOT_READY.has(code)) return NotReadyError;
  if (code === 'LK001') return LostError;
  if (code === '55P03') return RefusedError;
  if (code === '40P01') return DeadlockError;
  return DlockError;
}

/** The error for an SQLSTATE; undefined: the server did not answer. */
export function errorOf(code: string | undefined, message: string, cause?: unknown): DlockError {
  return new (classOf(code))(message, cause === undefined ? { code } : { code, cause });
}

/** The SQLSTATE of a driver's error.  Only the server's errors have a severity: those of the
 * operating system have codes, too, and "EPIPE" looks like an SQLSTATE. */
export function sqlstate(error: unknown): string | undefined {
  if (typeof error !== 'object' || error === null) return undefined;
  const { code, severity } = error as { code?: unknown; severity?: unknown };
  return typeof severity === 'string' && typeof code === 'string' ? code : undefined;
}

/** What an error of a driver means. */
export function translate(error: unknown): DlockError {
  if (error instanceof DlockError) return error;
  const message = error instanceof Error && error.message !== '' ? error.message : 'the connection failed';
  return errorOf(sqlstate(error), message, error);
}

/** The server is there, but accepts nobody: full, starting or shutting down. */
export const isTurnedAway = (error: DlockError): boolean => /^(53300|57P0)/.test(error.code ?? '');

// Values.  Drivers differ in how they write and read arrays, intervals and int8, so parameters are
// texts, numbers and booleans, and all that is read is text.

export type Param = string | number | boolean | null;
export type Row = (string | null)[];

export const interval = (ms: number | undefined): string | null =>
  ms === undefined || ms === Infinity ? null : `${String(Math.round(ms))} milliseconds`;

export function array(values: readonly Param[]): string {
  const quoted = values.map((v) => (v === null ? 'NULL' : `"${String(v).replace(/["\\]/g, '\\$&')}"`));
  return `{${quoted.join(',')}}`;
}

/** An array of numbers or of names, which need no quotes. */
export const list = (text: string): string[] => text.slice(1, -1).split(',').filter(Boolean);

// Statements.  Nothing depends on the search_path: names have their schema, operators and types are
// those of pg_catalog, and each argument is named and cast, so no function of another role fits.
// "@." is the schema of the extension.

function sql(parts: TemplateStringsArray, ...values: string[]): string {
  return String.raw({ raw: parts }, ...values)
    .replace(/\s+/g, ' ')
    .replace(/::(?!pg_catalog)/g, '::pg_catalog.')
    .replace(/ (=|<>|-|\*) /g, ' OPERATOR(pg_catalog.$1) ')
    .trim();
}

const ms = (x: string): string => sql`(EXTRACT(EPOCH FROM ${x})::float8 * 1000::float8)::int8`;
const left = (time: string): string => ms(sql`(${time} - pg_catalog.clock_timestamp())`);
const refresh = (key: string, version: string, owner: string, ttl = 'NULL', value = 'NULL'): string =>
  left(sql`@.dlock_refresh(key => ${key}, version => ${version}, ttl => ${ttl}::interval, owner => ${owner},
    value => ${value}::text, at_least => NULL::interval)`);
const unnest = (...types: string[]): string =>
  types.map((type, i) => sql`pg_catalog.unnest($${String(i + 1)}::${type}[])`).join(', ');

/** The process, which a pooler does not know, and the schema of the extension. */
export const HELLO = sql`
  SELECT pg_catalog.pg_backend_pid(), (SELECT pg_catalog.quote_ident(n.nspname::text)
    FROM pg_catalog.pg_extension AS e, pg_catalog.pg_namespace AS n
    WHERE n.oid = e.extnamespace AND (e.extname = 'dlock'::name OR e.extname = 'dlock_portable'::name
      OR e.extname = 'dlock_router'::name) ORDER BY e.extname LIMIT 1)`;
export const FEATURES = sql`SELECT f.edition::text, f.version::text, f.features::text[] FROM @.dlock_features() AS f`;
export const LISTEN = 'LISTEN dlock';

const TERMS = sql`key => $1::text, ttl => $2::interval, owner => $3::text, value => $4::text,
  priority => $5::int4, cleanup => $6::interval, force => $7::bool, slots => $8::int4, at_least => $9::interval,
  delay => $10::interval, lazy => $11::bool, shared => $12::bool, again => true`;
export const TRY = sql`SELECT @.dlock_acquire(${TERMS}, wait => '0'::interval, session => false)`;
export const ENQUEUE = sql`SELECT @.dlock_enqueue(${TERMS}, wait => $13::interval)`;
export const TRY_ALL = sql`
  SELECT @.dlock_acquire_all(keys => $1::text[], ttl => $2::interval, owner => $3::text, value => $4::text,
    wait => '0'::interval, priority => $5::int4, session => false, slots => $6::int4[], shared => $7::bool[])`;
/** Key, ticket, owner, TTL: what has become of the ticket; if it was granted, it is refreshed. */
export const CLAIM = sql`
  SELECT s.state, s.version, CASE WHEN s.state = 'granted'::text
    THEN ${refresh('$1::text', 's.version', '$3::text', '$4')} END
  FROM (SELECT 1) AS one LEFT JOIN LATERAL @.dlock_ticket(ticket => $2::int8) AS s ON true`;
export const DEQUEUE = sql`SELECT @.dlock_dequeue(ticket => $1::int8)`;
/** The tickets that do not wait any more. */
export const TICKETS = sql`
  SELECT u.t FROM pg_catalog.unnest($1::int8[]) AS u(t) LEFT JOIN LATERAL @.dlock_ticket(ticket => u.t) AS s ON true
  WHERE s.state IS NULL OR s.state <> 'waiting'::text`;
/** Key, version, owner, new value or NULL. */
export const REFRESH = sql`SELECT ${refresh('$1::text', '$2::int8', '$3::text', 'NULL', '$4')}`;
/** Keys, versions, owners, which to refresh, lock_timeout: for each its number, how long it lasts if
 * it was refreshed, its state, and how long it may take to yield. */
export const RENEW = sql`
  SELECT x.i, x.expires, x.state, CASE WHEN x.state = 'preempting'::text THEN (SELECT
    ${left('l.requestor_deadline')} FROM @.dlock_get(key => x.k) AS l WHERE l.version = x.v) END
  FROM (SELECT u.i, u.k, u.v, CASE WHEN u.r THEN ${refresh('u.k', 'u.v', 'u.o')} END AS expires,
      @.dlock_check(key => u.k, version => u.v, owner => u.o) AS state
    FROM (SELECT pg_catalog.set_config('lock_timeout', $5::text, true) OFFSET 0) AS l(t),
      ROWS FROM (${unnest('text', 'int8', 'text', 'bool')}) WITH ORDINALITY AS u(k, v, o, r, i)
    WHERE l.t IS NOT NULL OFFSET 0) AS x`;
export const RELEASE = sql`
  SELECT @.dlock_release(key => u.k, version => u.v, owner => u.o)
  FROM ROWS FROM (${unnest('text', 'int8', 'text')}) AS u(k, v, o)`;
/** Keys, owners, which may still be in the queue. */
export const GIVE_BACK = sql`
  SELECT CASE WHEN u.q AND EXISTS (SELECT FROM @.dlock_waiters AS w WHERE CASE WHEN w.ticket IS NOT NULL
      AND w.key = u.k AND w.owner = u.o THEN @.dlock_dequeue(ticket => w.ticket) END)
    THEN 'released'::text ELSE @.dlock_release(key => u.k, version => NULL::int8, owner => u.o) END
  FROM ROWS FROM (${unnest('text', 'text', 'bool')}) AS u(k, o, q)`;
export const GIVE_BACK_PORTABLE = sql`
  SELECT @.dlock_release(key => u.k, version => NULL::int8, owner => u.o)
  FROM ROWS FROM (${unnest('text', 'text', 'bool')}) AS u(k, o, q)`;
/** Within the transaction that it protects; the token is for fences that are triggers. */
export const FENCE = sql`
  SELECT @.dlock_fence(key => $1::text, version => $2::int8),
    pg_catalog.set_config('dlock.token', $2::int8::text, true)`;
/** Rounded up: a part of a millisecond is not "go ahead". */
export const LIMIT = sql`SELECT pg_catalog.ceil(EXTRACT(EPOCH FROM @.dlock_limit(key => $1::text, n => $2::int4,
  per => $3::interval, wait => '0'::interval, priority => $4::int4))::float8 * 1000::float8)::int8`;
export const GET = sql`
  SELECT l.version, l.owner, l.value, l.state FROM @.dlock_get(key => $1::text) AS l
  WHERE l.version IS NOT NULL ORDER BY l.version DESC`;
/** Of one key, or of all. */
export const HELD = sql`
  SELECT l.key, l.version, l.owner, l.role, l.slots, l.state FROM @.dlock_locks AS l
  WHERE $1::text IS NULL OR l.key = $1::text`;
export const PENDING = sql`
  SELECT w.key, NULL::int8, w.owner, w.role, w.slots FROM @.dlock_waiters AS w
  WHERE $1::text IS NULL OR w.key = $1::text`;
