import { setTimeout as sleep } from 'node:timers/promises';
import { Keeper, type LocksOptions } from './keeper.js';
import type { Grant } from './lease.js';
import * as p from './protocol.js';
import { BusyError, clock, InvalidArgumentError, LostError, UnreachableError } from './protocol.js';
import * as requests from './request.js';
import type { Leader, LimitOptions, LockManagerSnapshot, Terms } from './request.js';
import type { Source } from './source.js';

export type LockMode = 'exclusive' | 'shared';

/** What a lock is requested with.  Times are in milliseconds. */
export interface LockOptions {
  /** `shared`: any number of readers.  The default is `exclusive`. */
  mode?: LockMode | undefined;
  /** Do not wait: the lock is null if another client holds it. */
  ifAvailable?: boolean | undefined;
  /** Take the lock from its holder, who has its `cleanup` to finish. */
  steal?: boolean | undefined;
  /** Ends the wait.  It does not end a lock that was granted. */
  signal?: AbortSignal | undefined;
  /** How long the lock outlives its holder (20,000 ms).  It is renewed as long as it is held. */
  ttl?: number | undefined;
  /** How long to wait before it fails with BusyError; without it, without limit. */
  wait?: number | undefined;
  /** Kept with the lock, for others to see: a leader's address. */
  value?: string | undefined;
  /** A semaphore: how many may hold it. */
  slots?: number | undefined;
  /** Asks holders of a lower priority to yield. */
  priority?: number | undefined;
  /** How long the holder may take to finish when it is asked to yield; 0, the default, loses it at once. */
  cleanup?: number | undefined;
  /** Take the lock from a holder that was asked to yield, and did not. */
  force?: boolean | undefined;
  /** The key stays busy for so long after it was acquired, also if it was released. */
  atLeast?: number | undefined;
  /** The key stays busy for so long after its holder was lost. */
  delay?: number | undefined;
  /** Past its TTL, the lock ends only when another client wants it. */
  lazy?: boolean | undefined;
  /** It is not renewed for longer; `lock.asked` tells before. */
  maxHold?: number | undefined;
}

/** One name, or several that are granted together or not at all. */
export type LockName = string | readonly string[];
type IfAvailable = LockOptions & { ifAvailable: true };
type Waits = LockOptions & { ifAvailable?: false | undefined };
type Body<L, T> = (lock: L) => T | PromiseLike<T>;

const MAX_PRIORITY = 2_147_483_647;

function terms(options: LockOptions): Terms {
  const { ttl, wait, steal = false, ifAvailable = false, mode = 'exclusive', slots = 1, atLeast = 0 } = options;
  if (ttl !== undefined && !(ttl >= 1 && ttl < Infinity)) throw new InvalidArgumentError('ttl must be positive');
  for (const name of ['wait', 'cleanup', 'delay', 'maxHold', 'atLeast'] as const) {
    if (!((options[name] ?? 0) >= 0)) throw new InvalidArgumentError(`${name} must not be negative`);
  }
  if (mode === 'shared' && slots !== 1) throw new InvalidArgumentError('a shared lock has no slots');
  if (steal && (ifAvailable || mode === 'shared' || slots !== 1)) {
    throw new InvalidArgumentError('steal takes an exclusive lock, and may have to wait for it');
  }
  return {
    ttl: ttl ?? Math.max(p.TTL, atLeast),
    wait: ifAvailable ? 0 : (wait ?? Infinity),
    value: options.value ?? null,
    shared: mode === 'shared',
    slots,
    priority: steal ? MAX_PRIORITY : (options.priority ?? 0),
    cleanup: options.cleanup ?? 0,
    force: steal || (options.force ?? false),
    atLeast,
    delay: options.delay ?? 0,
    lazy: options.lazy ?? false,
    maxHold: options.maxHold,
  };
}

function keysOf(name: LockName): readonly string[] {
  const keys = typeof name === 'string' ? [name] : [...name];
  if (keys.length === 0 || keys.some((key) => typeof key !== 'string' || key === '')) {
    throw new InvalidArgumentError('the name of a lock is a string that is not empty');
  }
  return keys;
}

const abandoned = new FinalizationRegistry<{ keeper: Keeper; grant: Grant }>(({ keeper, grant }) => {
  if (!grant.isHeld(clock())) return;
  keeper.drop(grant);
  const name = grant.leases[0]?.key ?? '';
  process.emitWarning(`lock "${name}" was not released; it ends by its TTL`, 'DlockWarning');
});
const closing = new FinalizationRegistry<Keeper>((keeper) => {
  void keeper.close();
});

/** A lock that was granted.  It is renewed until it is released. */
export class Lock<Tx = unknown> implements AsyncDisposable {
  /** The (first) name. */
  readonly name: string;
  readonly mode: LockMode;
  /** The fencing token: higher than those of all locks of this name before. */
  readonly version: bigint;
  /** The fencing tokens of all names. */
  readonly versions: ReadonlyMap<string, bigint>;
  /** @internal which is not to be collected before */
  readonly locks: Locks<Tx>;
  readonly #keeper: Keeper;
  readonly #grant: Grant;
  #released: Promise<void> | undefined;
  /** The program asked for the signal, or knows of the loss otherwise. */
  #told = false;

  /** @internal */
  constructor(locks: Locks<Tx>, keeper: Keeper, grant: Grant, mode: LockMode) {
    this.locks = locks;
    this.#keeper = keeper;
    this.#grant = grant;
    this.mode = mode;
    this.versions = new Map(grant.leases.map((lease) => [lease.key, BigInt(lease.version)]));
    [[this.name, this.version]] = [...this.versions] as [[string, bigint]];
    abandoned.register(this, { keeper, grant }, this);
  }

  /** Do we hold it?  It looks at the clock, not at the server; a lost lock never comes back. */
  get held(): boolean {
    const held = this.#grant.isHeld(clock());
    this.#told ||= !held;
    return held;
  }

  /** Is aborted when the lock is lost, before the server can grant it to another client; the reason is
   * a LostError. */
  get signal(): AbortSignal {
    this.#told = true;
    return this.#grant.signal;
  }

  /** Is aborted when the holder is asked to finish; the reason is an AskedToYield. */
  get asked(): AbortSignal {
    return this.#grant.asked;
  }

  /** Milliseconds until it must be released if `asked` is aborted, else until it would be lost. */
  get timeLeft(): number {
    return this.#grant.timeLeft(clock());
  }

  /**
   * Runs `body` in a transaction of your pool that begins with the fence: until it ends, nobody can
   * take the lock, and if the lock is not ours it fails with LostError and writes nothing.
   */
  async fenced<T>(body: (tx: Tx) => Promise<T>): Promise<T> {
    try {
      this.#grant.signal.throwIfAborted();
      return await this.#keeper.fenced(this.#grant, body);
    } catch (error) {
      this.#told ||= error instanceof LostError;
      throw error;
    }
  }

  /**
   * What to set `dlock.fence` to in a connection of your own: what it writes is committed only while the
   * (first) name is held, in autocommit, too.
   */
  get fenceSetting(): string {
    return `${String(this.version)}:${this.name}`;
  }

  /** Replaces the value, which those who observe the name see. */
  async setValue(value: string): Promise<void> {
    await requests.setValue(this.#keeper, this.#grant, value);
  }

  /** Releases it.  LostError: it was not ours any more, so what was done may not have been alone. */
  async release(): Promise<void> {
    abandoned.unregister(this);
    this.#released ??= requests.release(this.#keeper, this.#grant);
    await this.#released;
  }

  /**
   * The end of an `await using`.  A loss is a LostError unless the block had it from `signal`, `held` or
   * `fenced()`.  A server that does not answer is not an error: the block had the lock, which ends by its
   * TTL if not before.
   */
  async [Symbol.asyncDispose](): Promise<void> {
    try {
      await this.release();
    } catch (error) {
      if (error instanceof UnreachableError || (error instanceof LostError && this.#told)) return;
      throw error;
    }
  }
}

/** All locks of a program in one database, in the shape of the Web Locks API. */
export class Locks<Tx = unknown> implements AsyncDisposable {
  readonly #keeper: Keeper;

  constructor(source: Source<Tx>, options: LocksOptions = {}) {
    this.#keeper = new Keeper(source, options);
    closing.register(this, this.#keeper, this);
  }

  /**
   * Acquires a lock, calls `body` with it, and releases it when the promise of `body` is settled.
   * The promise is that of `body`, but a loss that `body` did not fail of is a LostError.
   */
  request<T>(name: LockName, body: Body<Lock<Tx>, T>): Promise<Awaited<T>>;
  request<T>(name: LockName, options: IfAvailable, body: Body<Lock<Tx> | null, T>): Promise<Awaited<T>>;
  request<T>(name: LockName, options: Waits, body: Body<Lock<Tx>, T>): Promise<Awaited<T>>;
  async request<T>(
    name: LockName,
    options: LockOptions | Body<Lock<Tx>, T>,
    body?: Body<never, T>,
  ): Promise<Awaited<T>> {
    if (typeof options === 'function') return this.request(name, {}, options);
    if (typeof body !== 'function') throw new InvalidArgumentError('request() takes a function');
    const lock = await this.#acquire(name, options);
    let result: Awaited<T>;
    try {
      result = await body(lock as never);
    } catch (error) {
      await lock?.release().catch(() => undefined); // the error of the body tells more
      throw error;
    }
    await lock?.release().catch((error: unknown) => {
      if (!(error instanceof UnreachableError)) throw error;
    });
    return result;
  }

  /** Acquires a lock until it is released: `await using lock = await locks.acquire(...)`. */
  acquire(name: LockName, options: IfAvailable): Promise<Lock<Tx> | null>;
  acquire(name: LockName, options?: Waits): Promise<Lock<Tx>>;
  async acquire(name: LockName, options: LockOptions = {}): Promise<Lock<Tx> | null> {
    return this.#acquire(name, options);
  }

  async #acquire(name: LockName, options: LockOptions): Promise<Lock<Tx> | null> {
    const acquire = new requests.Acquire(this.#keeper, keysOf(name), terms(options), options.signal);
    try {
      return new Lock(this, this.#keeper, await acquire.grant(), options.mode ?? 'exclusive');
    } catch (error) {
      if (options.ifAvailable === true && error instanceof BusyError) return null;
      throw error;
    }
  }

  /** The locks and waiting requests of all clients of the database, of one name or of all. */
  async query(name?: string): Promise<LockManagerSnapshot> {
    return requests.query(this.#keeper, name ?? null);
  }

  /**
   * Leads whenever it is elected: calls `lead` with the lock, whose version is the term.  After a loss
   * it is a candidate again.  It ends when `lead` returns, fails otherwise, or the signal is aborted.
   */
  async elect<T>(name: string, options: Waits, lead: (lock: Lock<Tx>) => Promise<T>): Promise<T> {
    for (;;) {
      const lock = await this.acquire(name, { ttl: 10_000, ...options });
      try {
        return await lead(lock);
      } catch (error) {
        if (!(error instanceof LostError) || lock.held) throw error;
      } finally {
        await lock.release().catch(() => undefined);
      }
      options.signal?.throwIfAborted();
    }
  }

  /** Who leads, or holds the name, now. */
  async leader(name: string): Promise<Leader | null> {
    return requests.leader(this.#keeper, name);
  }

  /** The leader now, and after each change of it or of its value. */
  async *observe(
    name: string,
    { every = 1_000, signal }: { every?: number; signal?: AbortSignal } = {},
  ): AsyncGenerator<Leader | null, void, undefined> {
    let last: Leader | null | undefined;
    for (;;) {
      signal?.throwIfAborted();
      const now = await this.leader(name);
      if (last === undefined || now?.version !== last?.version || now?.value !== last?.value) yield (last = now);
      await sleep(every, undefined, signal === undefined ? {} : { signal });
    }
  }

  /** A rate limit of `n` in any window of `per` milliseconds.  0: go ahead; else the milliseconds
   * after which to ask again. */
  async limit(name: string, n: number, per: number, options: LimitOptions = {}): Promise<number> {
    return requests.limit(this.#keeper, [name, n, per], options);
  }

  /** Stops the renewal.  What is still held is told lost, and ends by its TTL. */
  async close(): Promise<void> {
    closing.unregister(this);
    await this.#keeper.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}
