// The keeper of a Locks object: it renews all locks and asks about all waits, on a connection of its
// own, and tells a loss in time whatever the server does.

import { debuglog } from 'node:util';
import type { Grant, Lease, LockEvent } from './lease.js';
import * as p from './protocol.js';
import { clock, DlockError, errorOf, NotReadyError, type Param, type Row, UnreachableError } from './protocol.js';
import type { Connection, Source } from './source.js';

const log = debuglog('dlock');

export interface LocksOptions {
  /** How long the server may be silent before a call fails with UnreachableError (10,000 ms). */
  timeout?: number;
  /** The schema of the functions, if they were installed without an extension. */
  schema?: string;
  /** Is told of each event; for metrics. */
  onEvent?: (event: LockEvent) => void;
}

export interface Answer {
  rows: Row[];
  /** Before it was sent. */
  sentAt: number;
}

/** A request that waits by ticket. */
export interface Wait {
  heard: boolean;
  wake: () => void;
  /** The event said that it is over, and why. */
  missed?: DlockError | 'busy';
}

/** A request that ended without an answer: it may have been granted, or still be queued. */
interface Abandoned {
  key: string;
  owner: string;
  inQueue: boolean;
  until: number;
  due: number;
  pause: number;
}

/** What the keeper sends, and what it does with the answer. */
interface Question {
  sql: string;
  params: Param[];
  timeout: number;
  answered(rows: Row[], sentAt: number): void;
  failed?(error: DlockError): void;
}

/** The result of `work`, but UnreachableError after `timeout`. */
async function within<T>(timeout: number, work: Promise<T>, onTimeout: () => void): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => {
      reject(new UnreachableError(`no answer from the server in ${String(Math.round(timeout))} ms`));
      onTimeout();
    }, Math.min(timeout, p.MAX_TIMER));
  });
  try {
    return await Promise.race([work, late]);
  } finally {
    clearTimeout(timer);
  }
}

export class Keeper {
  readonly timeout: number;
  /** Interrupt the requests that are under way. */
  readonly requests = new Set<(reason: unknown) => void>();
  features: ReadonlySet<string> = new Set();
  closed = false;
  /** When the server last answered the keeper. */
  aliveAt = 0;
  readonly #source: Source<unknown>;
  readonly #options: LocksOptions;
  readonly #leases = new Set<Lease>();
  readonly #waits = new Map<number, Wait>();
  #early: number[] = [];
  #abandoned: Abandoned[] = [];
  #schema = '';
  #learned: Promise<unknown> | undefined;
  #listens = false;
  #askedAt = 0;
  #hearAt = 0;
  #conn: Connection | undefined;
  #keeping: Promise<void> | undefined;
  #wake: () => void = () => undefined;
  #watch: NodeJS.Timeout | undefined;
  #watchAt = Infinity;

  constructor(source: Source<unknown>, options: LocksOptions) {
    this.#source = source;
    this.#options = options;
    this.timeout = options.timeout ?? p.TIMEOUT;
    if (!(this.timeout > 0)) throw new p.InvalidArgumentError('timeout must be positive');
  }

  readonly emit = (event: LockEvent): void => {
    try {
      this.#options.onEvent?.(event);
    } catch (error) {
      process.emitWarning(error instanceof Error ? error : String(error));
    }
  };

  // Statements

  /** One statement.  If it gets no answer in time, its socket is closed and the statement is not
   * cancelled: a cancel would have to reach the same silent server. */
  async #ask(conn: Connection, sql: string, params: readonly Param[], timeout: number): Promise<Answer> {
    let sentAt = clock();
    const sent = (): void => void (sentAt = clock());
    const text = sql.replaceAll('@.', `${this.#schema}.`);
    try {
      const rows = await within(timeout, conn.query(text, params, sent), () => {
        conn.destroy();
      });
      return { rows, sentAt };
    } catch (error) {
      throw p.translate(error);
    }
  }

  /** Before the first statement. */
  async learn(): Promise<void> {
    this.#learned ??= this.#learn(() => this.#source.borrow());
    try {
      await this.#learned;
    } catch (error) {
      this.#learned = undefined;
      throw error;
    }
  }

  /** A statement of a request, on a connection of the user's pool. */
  async ask(sql: string, params: readonly Param[]): Promise<Answer> {
    try {
      return await this.#ask(this.#source.borrow(), sql, params, this.timeout);
    } catch (error) {
      if (error instanceof NotReadyError) this.#learned = undefined; // look for the extension again
      throw error;
    }
  }

  /** Find out what the server has, and the process that answers. */
  async #learn(borrow: () => Connection): Promise<string | null | undefined> {
    const { rows } = await this.#ask(borrow(), p.HELLO, [], this.timeout);
    const schema = this.#options.schema ?? rows[0]?.[1];
    if (schema == null) {
      throw new NotReadyError(
        'the database has no extension dlock: CREATE EXTENSION dlock, or name the schema of the portable edition',
      );
    }
    const answer = await this.#ask(borrow(), p.FEATURES.replaceAll('@.', `${schema}.`), [], this.timeout).catch((error: unknown) => {
      if (!(error instanceof NotReadyError) || error.code !== '42883') throw error;
      throw new NotReadyError(
        "this client needs a dlock with dlock_features(): update the server's package, then ALTER EXTENSION dlock UPDATE",
        { code: error.code, cause: error },
      );
    });
    this.features = new Set(p.list(answer.rows[0]?.[2] ?? '{}'));
    this.#schema = schema;
    return rows[0]?.[0];
  }

  /** A transaction of the user's that begins with the fence. */
  async fenced<T>(grant: Grant, body: (tx: never) => Promise<T>): Promise<T> {
    try {
      return await this.#source.transaction(async (query) => {
        for (const lease of grant.leases) {
          try {
            await query(p.FENCE.replaceAll('@.', `${this.#schema}.`), [lease.key, lease.version]);
          } catch (error) {
            if (p.sqlstate(error) === 'LK001') lease.gone('not_held');
            throw error;
          }
        }
      }, body as (tx: unknown) => Promise<T>);
    } catch (error) {
      throw p.sqlstate(error) === 'LK001' ? p.translate(error) : error;
    }
  }

  // Leases

  checkUsable(): void {
    if (this.closed) throw new p.ClosedError('these locks are closed');
  }

  add(grant: Grant, sentAt: number, lasts?: number): void {
    for (const lease of grant.leases) {
      lease.renewed(sentAt, lasts);
      this.#leases.add(lease);
    }
    this.#look(clock() + p.SHORT);
    const due = grant.leases[0]?.due ?? Infinity;
    if (due < clock() + p.TICK) this.#wake();
  }

  /** It is not renewed any more: released, or nobody has it. */
  drop(grant: Grant): void {
    for (const lease of grant.leases) {
      this.#leases.delete(lease);
      if (lease.state === 'held') lease.state = 'released';
    }
    if (this.#leases.size === 0) {
      clearTimeout(this.#watch);
      this.#watchAt = Infinity;
    }
  }

  /** Look at all leases then.  This timer never waits for a server. */
  #look(at: number): void {
    if (this.closed || at >= this.#watchAt) return;
    clearTimeout(this.#watch);
    this.#watchAt = at;
    this.#watch = setTimeout(
      () => {
        this.#watchAt = Infinity;
        this.#look(this.#expire(clock()));
        if (this.#needsConnection(clock())) this.#start();
      },
      Math.min(Math.max(at - clock(), 1), p.TICK),
    );
  }

  /** Find what is lost or in danger by now; when to look again. */
  #expire(now: number): number {
    let soon = Infinity;
    for (const lease of this.#leases) {
      if (now >= lease.deadline) lease.lose('deadline');
      if (lease.state !== 'held') {
        this.#leases.delete(lease);
        continue;
      }
      if (now >= lease.dangerAt) {
        lease.dangerAt = Infinity;
        lease.grant.danger(lease, lease.deadline - now);
      }
      const last = lease.ends - p.LEASE * lease.ttl;
      if (lease.renews && now >= last) {
        lease.renews = false;
        lease.dangerAt = Infinity;
        lease.ask('maxHold', lease.deadline, now);
      }
      soon = Math.min(soon, lease.deadline, lease.dangerAt, lease.renews ? last : Infinity);
      if (now < lease.since + p.SHORT) soon = Math.min(soon, lease.since + p.SHORT);
    }
    return soon;
  }

  /** Nothing is released: what is held is told lost, and ends by its TTL. */
  async close(): Promise<void> {
    this.closed = true;
    clearTimeout(this.#watch);
    for (const lease of this.#leases) lease.lose('closed');
    this.#leases.clear();
    for (const interrupt of this.requests) interrupt(new p.ClosedError('these locks are closed'));
    this.#conn?.destroy();
    this.#wake();
    await this.#keeping;
  }

  // Waits and abandoned requests

  wait(ticket: string): Wait {
    const wait: Wait = { heard: this.#early.includes(Number(ticket)), wake: () => undefined };
    this.#waits.set(Number(ticket), wait);
    this.#start();
    return wait;
  }

  forget(ticket: string): void {
    this.#waits.delete(Number(ticket));
  }

  abandon(key: string, owner: string, inQueue: boolean, ttl: number): void {
    const due = clock();
    const until = due + Math.min(ttl, p.ABANDON.last);
    this.#abandoned.push({ key, owner, inQueue, until, due, pause: p.ABANDON.first });
    this.#start();
  }

  /** Every role may send on the channel, so an event only leads to a question. */
  readonly #hear = (payload: string): void => {
    let said: unknown;
    try {
      said = JSON.parse(payload);
    } catch {
      return;
    }
    const { event, key, version, ticket, code, reason } = (said ?? {}) as Record<string, unknown>;
    if ((event === 'granted' || event === 'missed') && typeof ticket === 'number') {
      const wait = this.#waits.get(ticket);
      if (wait === undefined) {
        this.#early = [...this.#early, ticket].slice(-p.MAX_EARLY);
        return;
      }
      if (event === 'missed') wait.missed = typeof code === 'string' ? errorOf(code, String(reason)) : 'busy';
      this.#tell(wait);
    } else if (event === 'preempt' || event === 'expired' || event === 'forced') {
      for (const lease of this.#leases) {
        if (lease.key !== key || Number(lease.version) !== version) continue;
        lease.heard = true;
        lease.forced ||= event === 'forced';
        this.#wake();
      }
    }
  };

  #tell(wait: Wait): void {
    wait.heard = true;
    wait.wake();
  }

  // The connection

  #needsConnection(now: number): boolean {
    this.#abandoned = this.#abandoned.filter((a) => now < a.until);
    if (this.#waits.size > 0 || this.#abandoned.length > 0) return true;
    for (const lease of this.#leases) if (now >= lease.since + p.SHORT) return true;
    return false;
  }

  #start(): void {
    if (this.closed) return;
    this.#wake();
    this.#keeping ??= this.#keep().finally(() => {
      this.#conn?.destroy();
      this.#conn = this.#keeping = undefined;
      if (this.#needsConnection(clock())) this.#start();
    });
  }

  async #keep(): Promise<void> {
    let pause = p.BACKOFF.first;
    let retryAt = 0;
    let usedAt = clock();
    while (!this.closed) {
      const now = clock();
      if (this.#needsConnection(now)) usedAt = now;
      else if (this.#conn === undefined || now >= usedAt + p.IDLE) return;
      try {
        if (this.#conn === undefined && now >= retryAt) {
          this.#conn = this.#source.open(this.#hear, this.timeout);
          await this.#connected(this.#conn);
        }
        const question = this.#conn && this.#plan(clock());
        if (this.#conn !== undefined && question !== undefined) {
          await this.#put(this.#conn, question);
          pause = p.BACKOFF.first;
          continue;
        }
      } catch (error) {
        log('renewal: %s', error);
        if (error instanceof DlockError && p.isTurnedAway(error)) this.aliveAt = clock();
        this.#conn?.destroy();
        this.#conn = undefined;
        retryAt = clock() + p.jitter(pause);
        pause = Math.min(2 * pause, p.BACKOFF.last);
      }
      await this.#rest(this.#conn === undefined ? retryAt : this.#nextAt());
    }
  }

  /** Listen, if there is no pooler in between.  What was told meanwhile was missed. */
  async #connected(conn: Connection): Promise<void> {
    const pid = await this.#learn(() => conn);
    this.#listens = conn.pid !== undefined && pid === String(conn.pid);
    if (this.#listens) {
      await this.#ask(conn, p.LISTEN, [], this.timeout);
      for (const lease of this.#leases) lease.heard = true;
    }
    this.#askedAt = 0;
  }

  async #put(conn: Connection, question: Question): Promise<void> {
    try {
      const { rows, sentAt } = await this.#ask(conn, question.sql, question.params, question.timeout);
      this.aliveAt = clock();
      question.answered(rows, sentAt);
    } catch (error) {
      question.failed?.(p.translate(error));
      if (error instanceof UnreachableError) throw error;
      log('renewal: %s', error);
    }
  }

  /** Until then, or until somebody wakes the keeper. */
  async #rest(until: number): Promise<void> {
    const left = Math.min(Math.max(until - clock(), 0), p.TICK);
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, left);
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  /** When to plan again, if nothing happens. */
  #nextAt(): number {
    let at = Infinity;
    for (const a of this.#abandoned) at = Math.min(at, a.due);
    if (this.#waits.size > 0) at = Math.min(at, this.#askedAt + this.#ticketPause());
    for (const lease of this.#leases) at = Math.min(at, lease.due, lease.heard ? this.#hearAt : Infinity);
    return at;
  }

  // What to send

  #plan(now: number): Question | undefined {
    return this.#renewal(now) ?? this.#tickets(now) ?? this.#giveBack(now);
  }

  /** One statement for all that are due, and for those that events have named.  Locks of a statement
   * that failed follow one by one. */
  #renewal(now: number): Question | undefined {
    const isWanted = (lease: Lease, at: number): boolean => lease.due <= at || (lease.heard && now >= this.#hearAt);
    const soon = (lease: Lease): number => now + p.TOGETHER * lease.ttl;
    const leases = [...this.#leases].filter((lease) => lease.isHeld(now));
    const ripe = leases.filter((lease) => isWanted(lease, now));
    if (ripe.length === 0) return undefined;
    const batch = ripe.every((lease) => lease.alone)
      ? ripe.sort((a, b) => a.deadline - b.deadline).slice(0, 1)
      : leases.filter((lease) => !lease.alone && isWanted(lease, soon(lease))).slice(0, p.MAX_BATCH);
    const heard = batch.filter((lease) => lease.heard);
    if (heard.length > 0) {
      this.#hearAt = Math.max(this.#hearAt, now - p.HEAR.pause * (p.HEAR.burst - 1)) + p.HEAR.pause;
    }
    for (const lease of heard) lease.heard = false;
    const renew = batch.map((lease) => lease.renews && lease.due <= soon(lease));
    const timeout = Math.max(p.ANSWER * Math.min(...batch.map((lease) => lease.ttl)), 20);
    return {
      sql: p.RENEW,
      params: [
        p.array(batch.map((lease) => lease.key)),
        p.array(batch.map((lease) => lease.version)),
        p.array(batch.map((lease) => lease.owner)),
        p.array(renew),
        `${String(Math.max(Math.floor(timeout / 3), 1))}ms`,
      ],
      timeout,
      answered: (rows, sentAt) => {
        for (const [number, lasts, state, yields] of rows) {
          const i = Number(number) - 1;
          const lease = batch[i];
          if (lease !== undefined) this.#renewed(lease, renew[i] ?? false, lasts, state, yields, sentAt);
        }
      },
      failed: (error) => {
        for (const lease of heard) lease.heard = true;
        if (error instanceof UnreachableError) return;
        // the server is there but refused it, perhaps because of one of them
        for (const lease of batch) {
          if (lease.alone || batch.length === 1) lease.due = clock() + p.REFUSED * lease.ttl;
          lease.alone = true;
        }
      },
    };
  }

  #renewed(lease: Lease, wasRenewed: boolean, ...[lasts, state, yields, sentAt]: Renewal): void {
    const now = clock();
    if (!lease.isHeld(now)) return; // a lost lock never comes back
    lease.alone = false;
    if ((state !== 'held' && state !== 'preempting') || (wasRenewed && lasts == null)) {
      lease.gone(state ?? null);
      return;
    }
    if (!lease.heard) lease.forced = false;
    if (wasRenewed) {
      lease.renewed(sentAt, Number(lasts));
      lease.grant.emit('renewed', lease);
    } else if (lease.due <= now) {
      lease.due = sentAt + p.PERIOD * lease.ttl;
    }
    const asks = state === 'preempting' && !lease.preempting;
    lease.preempting = state === 'preempting';
    if (asks) lease.ask('priority', now + Number(yields ?? 0), now);
  }

  #ticketPause(): number {
    return this.#listens ? this.timeout / 2 : p.POLL;
  }

  /** One question for all requests that wait. */
  #tickets(now: number): Question | undefined {
    if (this.#waits.size === 0 || now < this.#askedAt + this.#ticketPause()) return undefined;
    this.#askedAt = now;
    return {
      sql: p.TICKETS,
      params: [p.array([...this.#waits.keys()].slice(0, p.MAX_BATCH))],
      timeout: this.timeout,
      answered: (rows) => {
        for (const [ticket] of rows) {
          const wait = this.#waits.get(Number(ticket));
          if (wait !== undefined) this.#tell(wait);
        }
      },
    };
  }

  /** Release by owner what may have been granted unheard.  If nothing was there, its request may be
   * slower than our release, so it is tried again later. */
  #giveBack(now: number): Question | undefined {
    const due = this.#abandoned.filter((a) => now >= a.due).slice(0, p.MAX_BATCH);
    if (due.length === 0) return undefined;
    for (const a of due) {
      a.due = now + a.pause;
      a.pause *= 2;
    }
    return {
      sql: this.features.has('tickets') ? p.GIVE_BACK : p.GIVE_BACK_PORTABLE,
      params: [p.array(due.map((a) => a.key)), p.array(due.map((a) => a.owner)), p.array(due.map((a) => a.inQueue))],
      timeout: this.timeout,
      answered: (rows) => {
        const released = new Set(due.filter((_, i) => rows[i]?.[0] === 'released'));
        this.#abandoned = this.#abandoned.filter((a) => !released.has(a));
      },
    };
  }
}

type Text = string | null | undefined;
type Renewal = [lasts: Text, state: Text, yields: Text, sentAt: number];
