// One request from its beginning to its end: what it asks, and what the answers mean.
//
//   TRY -> granted
//    |
//   busy -> ENQUEUE -> wait -> CLAIM -> granted, or missed
//                       ^--------'
//   ... and from the beginning if the server does not know the ticket any more.

import type { Keeper, Answer, Wait } from './keeper.js';
import { Grant, type Lease } from './lease.js';
import * as p from './protocol.js';
import { BusyError, clock, DeadlockError, interval, RefusedError, UnreachableError, type Param, type Row } from './protocol.js';

/** What is asked for.  Times are in milliseconds. */
export interface Terms {
  ttl: number;
  /** Infinity: without limit. */
  wait: number;
  value: string | null;
  shared: boolean;
  slots: number;
  priority: number;
  cleanup: number;
  force: boolean;
  atLeast: number;
  delay: number;
  lazy: boolean;
  maxHold: number | undefined;
}

/** Who holds a name.  Owner and value of another role's lock may be hidden. */
export interface Leader {
  readonly version: bigint;
  readonly owner: string | null;
  readonly value: string | null;
}

/** A lock or a request of any client, as `locks.query()` shows it. */
export interface LockInfo {
  readonly name: string;
  readonly mode: 'exclusive' | 'shared';
  /** How many may hold it: 1 if it is exclusive, Infinity if it is shared. */
  readonly slots: number;
  /** The owner of its request; null if it is another role's. */
  readonly clientId: string | null;
  readonly role: string | null;
  /** Null while it waits. */
  readonly version: bigint | null;
  /** Of what is held: held, preempting, lapsed, cooling or pending. */
  readonly state: string | null;
}

export interface LockManagerSnapshot {
  readonly held: readonly LockInfo[];
  readonly pending: readonly LockInfo[];
}

export interface LimitOptions {
  /** How long to wait for the turn; 0, the default, does not wait. */
  wait?: number;
  priority?: number;
  signal?: AbortSignal;
}

/** One statement, or several, asked until there is an answer. */
export class Request {
  protected readonly began = clock();
  readonly waitUntil: number;
  /** A statement may have taken effect unheard. */
  unanswered = false;
  #alive = this.began;
  #interrupted: (() => void) | undefined;
  #reject: (reason: unknown) => void = () => undefined;

  constructor(
    readonly keeper: Keeper,
    wait = 0,
    private readonly signal?: AbortSignal,
  ) {
    this.waitUntil = this.began + wait;
  }

  /** `work`, which the signal and close() interrupt. */
  async run<T>(work: () => Promise<T>): Promise<T> {
    this.signal?.throwIfAborted();
    this.keeper.checkUsable();
    const interrupt = (reason: unknown): void => {
      this.#interrupted ??= () => {
        this.#reject(reason);
      };
      this.#interrupted();
    };
    const aborted = (): void => {
      interrupt(this.signal?.reason);
    };
    this.keeper.requests.add(interrupt);
    this.signal?.addEventListener('abort', aborted);
    try {
      await this.#repeat(() => this.#step(this.keeper.learn()));
      return await work();
    } finally {
      this.keeper.requests.delete(interrupt);
      this.signal?.removeEventListener('abort', aborted);
    }
  }

  /** One step, which can be interrupted; what it has begun continues in the background. */
  async #step<T>(step: Promise<T>): Promise<T> {
    return new Promise((resolve, reject) => {
      this.#reject = reject;
      step.then(resolve, reject);
      this.#interrupted?.();
    });
  }

  /** Until then, or until the event. */
  async rest(until: number, wait?: Wait): Promise<void> {
    while (wait?.heard !== true) {
      const left = until - clock();
      if (left <= 0) return;
      let timer: NodeJS.Timeout | undefined;
      const sleep = new Promise<void>((resolve) => {
        timer = setTimeout(resolve, Math.min(left, p.TICK));
        if (wait !== undefined) wait.wake = resolve;
      });
      await this.#step(sleep).finally(() => {
        clearTimeout(timer);
      });
    }
  }

  /** Ask again after no answer: the same owner gets the same grant. */
  async ask(sql: string, ...params: Param[]): Promise<Answer> {
    return this.#repeat(async () => {
      try {
        return await this.#step(this.keeper.ask(sql, params));
      } catch (error) {
        this.unanswered ||= error instanceof UnreachableError || this.#interrupted !== undefined;
        throw error;
      }
    });
  }

  /** The server may be silent for the timeout; one that turns us away is not silent, as long as the
   * wait lasts. */
  async #repeat<T>(work: () => Promise<T>): Promise<T> {
    for (let pause = p.BACKOFF.first; ; pause = Math.min(2 * pause, p.BACKOFF.last)) {
      try {
        const result = await work();
        this.#alive = clock();
        return result;
      } catch (error) {
        if (!(error instanceof UnreachableError)) throw error;
        const now = clock();
        if (p.isTurnedAway(error) && now < this.waitUntil) this.#alive = now;
        if (now + pause >= this.#alive + this.keeper.timeout) throw error;
        await this.rest(now + p.jitter(pause));
      }
    }
  }

  async value(sql: string, ...params: Param[]): Promise<string | null> {
    return (await this.ask(sql, ...params)).rows[0]?.[0] ?? null;
  }
}

export class Acquire extends Request {
  readonly #owner = p.newOwner();
  #inDoubt = false;
  #inQueue = false;
  #lateSince: number | undefined; // grants are over before we hear of them

  constructor(
    keeper: Keeper,
    readonly keys: readonly string[],
    readonly terms: Terms,
    signal?: AbortSignal,
  ) {
    super(keeper, terms.wait, signal);
  }

  async grant(): Promise<Grant> {
    const name = this.keys[0] ?? '';
    let done = false;
    try {
      const grant = await this.run(() => (this.keys.length === 1 ? this.#one(name) : this.#all()));
      done = true;
      const version = BigInt(grant.leases[0]?.version ?? 0);
      this.keeper.emit({ type: 'granted', name, version, waited: clock() - this.began });
      return grant;
    } catch (error) {
      if (error instanceof BusyError) this.keeper.emit({ type: 'busy', name, waited: clock() - this.began });
      throw error;
    } finally {
      if (!done && (this.#inDoubt || this.#inQueue)) {
        for (const key of this.keys) this.keeper.abandon(key, this.#owner, this.#inQueue, this.terms.ttl);
      }
    }
  }

  #busy(): BusyError {
    return new BusyError(`lock ${this.keys.map((key) => `"${key}"`).join(', ')} is held by another client`);
  }

  #params(key: string, ttl: number): Param[] {
    const t = this.terms;
    return [key, interval(ttl), this.#owner, t.value, t.priority, interval(t.cleanup), t.force, t.slots,
      interval(t.atLeast), interval(t.delay), t.lazy, t.shared];
  }

  /** It counts as ours only if we know when the lease started.  Undefined: it is lost already. */
  async #granted(versions: readonly string[], sentAt: number, lasts?: number): Promise<Grant | undefined> {
    if (clock() - sentAt > p.CONFIRM * this.terms.ttl) {
      for (const [i, key] of this.keys.entries()) {
        const answer = await this.ask(p.REFRESH, key, versions[i] ?? null, this.#owner, null);
        const left = answer.rows[0]?.[0];
        if (left == null) {
          this.#lateSince ??= clock();
          if (clock() >= this.#lateSince + this.keeper.timeout) {
            throw new UnreachableError('the server takes longer to answer than the TTL');
          }
          return undefined;
        }
        if (i === 0) ({ sentAt } = answer);
        lasts = Math.min(lasts ?? Infinity, Number(left));
      }
    }
    this.keeper.checkUsable();
    this.#inDoubt = this.#inQueue = false;
    const grant = new Grant(this.keys, versions, this.#owner, this.terms, this.keeper.emit);
    this.keeper.add(grant, sentAt, lasts);
    return grant;
  }

  async #one(key: string): Promise<Grant> {
    const { keeper, terms } = this;
    let missed = 0;
    for (;;) {
      const tickets = keeper.features.has('tickets') && Buffer.byteLength(terms.value ?? '') <= p.MAX_TICKET_BYTES;
      // a try with a priority would not give the holder the time to yield
      if (terms.priority === 0 || !tickets || clock() >= this.waitUntil) {
        this.#inDoubt = true;
        const { rows, sentAt } = await this.#try(p.TRY, ...this.#params(key, terms.ttl));
        const version = rows[0]?.[0];
        if (version != null) {
          const grant = await this.#granted([version], sentAt);
          if (grant !== undefined) return grant;
          continue;
        }
        this.#inDoubt = this.unanswered; // the holder may be our own first try
        this.#lateSince = undefined;
      }
      const now = clock();
      if (now >= this.waitUntil) throw this.#busy();
      if (!tickets) {
        await this.rest(Math.min(now + p.jitter(p.POLL), this.waitUntil));
        continue;
      }
      const ticket = await this.#enqueue(key, now);
      if (ticket === undefined) continue;
      const result = await this.#wait(key, ticket);
      if (result instanceof Grant) return result;
      if (result === 'missed' && ++missed > 1) {
        throw new DeadlockError(`deadlock detected while waiting for lock "${key}"`, { code: '40P01' });
      }
    }
  }

  /** An error that is an answer leaves nothing behind. */
  async #try(sql: string, ...params: Param[]): Promise<Answer> {
    try {
      return await this.ask(sql, ...params);
    } catch (error) {
      this.#inDoubt = this.unanswered;
      throw error;
    }
  }

  /** Undefined: there is no room for a ticket now. */
  async #enqueue(key: string, now: number): Promise<string | undefined> {
    const ttl = Math.max(Math.min(this.terms.ttl, p.CLAIM_TTL), this.terms.atLeast);
    this.#inQueue = true;
    try {
      return (await this.value(p.ENQUEUE, ...this.#params(key, ttl), interval(this.waitUntil - now))) ?? undefined;
    } catch (error) {
      this.#inQueue = this.unanswered;
      if (p.sqlstate((error as Error).cause) !== '53400' || clock() >= this.waitUntil) throw error;
      await this.rest(Math.min(clock() + p.POLL, this.waitUntil));
      return undefined;
    }
  }

  /** A grant; "again" if it is unknown or was lost; "missed" if a try shall say why. */
  async #wait(key: string, ticket: string): Promise<Grant | 'again' | 'missed'> {
    const { keeper } = this;
    const wait = keeper.wait(ticket);
    let asked = clock();
    const silentAt = (): number => Math.max(asked, keeper.aliveAt) + keeper.timeout;
    try {
      for (;;) {
        await this.rest(Math.min(this.waitUntil, silentAt()), wait);
        const wasHeard = wait.heard;
        wait.heard = false;
        if (!wasHeard && clock() < this.waitUntil) {
          if (clock() < silentAt()) continue;
          throw new UnreachableError(`no answer from the server in ${String(keeper.timeout)} ms`);
        }
        const { rows, sentAt } = await this.ask(p.CLAIM, key, ticket, this.#owner, interval(this.terms.ttl));
        asked = clock();
        const [state = null, version = null, lasts = null] = rows[0] ?? [];
        if (state === 'granted' && version !== null && lasts !== null) {
          const grant = await this.#granted([version], sentAt, Number(lasts));
          if (grant !== undefined) return grant;
        }
        if (state === null) return 'again'; // the server was restarted, or it is another one
        if (state !== 'waiting') {
          this.#inQueue = false;
          return state === 'missed' ? this.#missed(wait) : 'again';
        }
        if (asked >= this.waitUntil + p.OVERDUE) {
          if ((await this.value(p.DEQUEUE, ticket)) !== 't') continue;
          this.#inQueue = false;
          throw this.#busy();
        }
        // a false event is not acted upon for a while, and the server may be late
        await this.rest(clock() + p.POLL, wasHeard ? undefined : wait);
      }
    } finally {
      keeper.forget(ticket);
    }
  }

  /** The server says that the wait is over.  The event says why, but need not have come. */
  #missed(wait: Wait): 'missed' {
    if (wait.missed instanceof Error) throw wait.missed;
    if (this.terms.priority > 0 && wait.missed === undefined) {
      throw new RefusedError(`the holder of lock "${this.keys[0] ?? ''}" did not yield`, { code: '55P03' });
    }
    if (wait.missed === 'busy' || clock() >= this.waitUntil) throw this.#busy();
    return 'missed';
  }

  /** Several keys have no ticket: polite polling, without a place in the queue. */
  async #all(): Promise<Grant> {
    const t = this.terms;
    const each = (value: Param): string => p.array(this.keys.map(() => value));
    for (let pause = p.BACKOFF.first; ; pause = Math.min(2 * pause, p.POLL)) {
      this.#inDoubt = true;
      const { rows, sentAt } = await this.#try(p.TRY_ALL, p.array(this.keys), interval(t.ttl), this.#owner, t.value,
        t.priority, each(t.slots), each(t.shared));
      const versions = rows[0]?.[0];
      if (versions != null) {
        const grant = await this.#granted(p.list(versions), sentAt);
        if (grant !== undefined) return grant;
        continue;
      }
      this.#inDoubt = this.unanswered;
      this.#lateSince = undefined;
      if (clock() >= this.waitUntil) throw this.#busy();
      await this.rest(Math.min(clock() + p.jitter(pause), this.waitUntil));
    }
  }
}

/** Stop the renewal, then release.  A grant that is not there was lost, unless an earlier release got
 * no answer. */
export async function release(keeper: Keeper, grant: Grant): Promise<void> {
  const { leases } = grant;
  const column = (of: (lease: Lease) => Param): string => p.array(leases.map(of));
  const wasHeld = grant.isHeld(clock());
  keeper.drop(grant);
  const request = new Request(keeper);
  try {
    if (!wasHeld) throw grant.error();
    const { rows } = await request.run(() =>
      request.ask(p.RELEASE, column((x) => x.key), column((x) => x.version), column((x) => x.owner)));
    for (const [i, lease] of leases.entries()) {
      const said = rows[i]?.[0] ?? null;
      if (said === 'released' || request.unanswered) {
        grant.emit('released', lease);
      } else {
        lease.state = 'held';
        lease.gone(said);
      }
    }
  } catch (error) {
    for (const lease of leases) {
      // of the others, the server has said that they are gone
      const mayBeHeld = lease.state !== 'lost' || lease.reason === 'deadline';
      if (mayBeHeld) keeper.abandon(lease.key, lease.owner, false, lease.ttl);
    }
    throw error;
  }
  if (leases.some((lease) => lease.state === 'lost')) throw grant.error();
}

/** Replace the value, which those who observe the key see. */
export async function setValue(keeper: Keeper, grant: Grant, value: string): Promise<void> {
  const request = new Request(keeper);
  for (const lease of grant.leases) {
    const { rows, sentAt } = await request.run(() =>
      request.ask(p.REFRESH, lease.key, lease.version, lease.owner, value),
    );
    const lasts = rows[0]?.[0];
    if (lasts == null) lease.gone('not_held');
    else if (lease.isHeld(clock())) lease.renewed(sentAt, Number(lasts));
  }
  if (!grant.isHeld(clock())) throw grant.error();
}

/** 0: go ahead; else the time until to ask again. */
export async function limit(
  keeper: Keeper,
  [key, n, per]: [key: string, n: number, per: number],
  { wait = 0, priority = 0, signal }: LimitOptions,
): Promise<number> {
  const request = new Request(keeper, wait, signal);
  return request.run(async () => {
    for (;;) {
      const left = Number(await request.value(p.LIMIT, key, n, interval(per), priority));
      if (left <= 0 || clock() + left > request.waitUntil) return left;
      await request.rest(clock() + left);
    }
  });
}

/** Who holds the key now. */
export async function leader(keeper: Keeper, key: string): Promise<Leader | null> {
  const request = new Request(keeper);
  const { rows } = await request.run(() => request.ask(p.GET, key));
  const row = rows.find(([, , , state]) => state === 'held' || state === 'preempting' || state === 'lapsed');
  if (row === undefined) return null;
  const [version, owner, value] = row;
  return { version: BigInt(version ?? 0), owner: owner ?? null, value: value ?? null };
}

/** Everybody's locks and waits. */
export async function query(keeper: Keeper, key: string | null): Promise<LockManagerSnapshot> {
  const request = new Request(keeper);
  return request.run(async () => {
    const info = ([name, version, owner, role, slots, state]: Row): LockInfo => ({
      name: name ?? '',
      mode: slots == null ? 'shared' : 'exclusive',
      slots: slots == null ? Infinity : Number(slots),
      clientId: owner ?? null,
      role: role ?? null,
      version: version == null ? null : BigInt(version),
      state: state ?? null,
    });
    const held = await request.ask(p.HELD, key);
    const pending = keeper.features.has('tickets') ? await request.ask(p.PENDING, key) : undefined;
    return { held: held.rows.map(info), pending: pending?.rows.map(info) ?? [] };
  });
}
