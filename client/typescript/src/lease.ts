// What is held, and how long it is ours.  Nothing here talks to a server.

import * as p from './protocol.js';
import { clock, LostError } from './protocol.js';

/** `deadline`: nobody knows, the server did not answer in time. */
export type LostReason = 'deadline' | 'preempted' | 'forced' | 'expired' | 'closed';
export type AskedReason = 'priority' | 'maxHold';

/** Told to `onEvent`.  Times are in milliseconds: what was waited, or what is left. */
export type LockEvent =
  | { type: 'granted'; name: string; version: bigint; waited: number }
  | { type: 'busy'; name: string; waited: number }
  | { type: 'renewed'; name: string; version: bigint }
  | { type: 'danger'; name: string; version: bigint; left: number }
  | { type: 'asked'; name: string; version: bigint; reason: AskedReason; left: number }
  | { type: 'lost'; name: string; version: bigint; reason: LostReason }
  | { type: 'released'; name: string; version: bigint };

/** The reason of `lock.asked`: the holder is to finish and to release. */
export class AskedToYield extends Error {
  override readonly name = 'AskedToYield';

  constructor(
    readonly reason: AskedReason,
    /** Milliseconds that were left when it was asked. */
    readonly left: number,
  ) {
    super(reason === 'priority' ? 'a request with a higher priority wants the lock' : 'the lock was held for maxHold');
  }
}

/** One grant of one key. */
export class Lease {
  readonly since = clock();
  readonly ends: number;
  state: 'held' | 'lost' | 'released' = 'held';
  /** Why it is lost. */
  reason: LostReason | undefined;
  deadline = 0;
  dangerAt = 0;
  due = 0;
  /** It is renewed, until maxHold. */
  renews = true;
  /** The server's state. */
  preempting = false;
  /** An event has named it, so it is asked about. */
  heard = false;
  forced = false;
  /** The server refused a statement that renewed it together with others. */
  alone = false;

  constructor(
    readonly grant: Grant,
    readonly key: string,
    readonly owner: string,
    readonly version: string,
    readonly ttl: number,
    maxHold = Infinity,
  ) {
    this.ends = this.since + maxHold;
  }

  /** The server answered a question that was sent then.  Its expiry counts from later on, and may be
   * sooner than the TTL (a policy's max_hold). */
  renewed(sentAt: number, lasts = this.ttl): void {
    const ttl = Math.min(this.ttl, lasts);
    this.deadline = Math.min(sentAt + p.LEASE * ttl, this.ends);
    this.dangerAt = sentAt + p.DANGER * ttl;
    this.due = sentAt + p.jitter(p.PERIOD * ttl);
  }

  isHeld(now: number): boolean {
    return this.state === 'held' && now < this.deadline;
  }

  /** The server says that it is free, or another's.  Before our deadline it cannot have expired, so if
   * another client holds it, it was taken away. */
  gone(state: string | null): void {
    const taken = this.forced || state === 'held_by_other';
    this.lose(this.preempting ? 'preempted' : taken ? 'forced' : 'expired');
  }

  lose(reason: LostReason): void {
    if (this.state !== 'held') return;
    this.state = 'lost';
    this.reason = reason;
    this.grant.lost(this, reason);
  }

  ask(reason: AskedReason, until: number, now: number): void {
    this.grant.ask(this, reason, until, now);
  }
}

/** The leases of one request, one for each key.  The keeper knows grants and no Lock, so a Lock that
 * nobody has any more is collected, and its renewal ends. */
export class Grant {
  readonly leases: readonly Lease[];
  readonly #lost = new AbortController();
  readonly #asked = new AbortController();
  readonly #emit: (event: LockEvent) => void;
  #askedUntil = Infinity;

  constructor(
    keys: readonly string[],
    versions: readonly string[],
    owner: string,
    options: { ttl: number; maxHold?: number | undefined },
    emit: (event: LockEvent) => void,
  ) {
    this.#emit = emit;
    this.leases = keys.map((key, i) => new Lease(this, key, owner, versions[i] ?? '', options.ttl, options.maxHold));
  }

  get asked(): AbortSignal {
    return this.#asked.signal;
  }

  /** Looks at the clock, too: a process that was stopped knows first thing. */
  get signal(): AbortSignal {
    this.isHeld(clock());
    return this.#lost.signal;
  }

  isHeld(now: number): boolean {
    for (const lease of this.leases) if (now >= lease.deadline) lease.lose('deadline');
    return this.leases.every((lease) => lease.isHeld(now));
  }

  timeLeft(now: number): number {
    if (!this.isHeld(now)) return 0;
    return Math.max(Math.min(this.#askedUntil, ...this.leases.map((lease) => lease.deadline)) - now, 0);
  }

  emit(type: 'renewed' | 'released', lease: Lease): void {
    this.#emit({ type, name: lease.key, version: BigInt(lease.version) });
  }

  danger(lease: Lease, left: number): void {
    this.#emit({ type: 'danger', name: lease.key, version: BigInt(lease.version), left });
  }

  lost(lease: Lease, reason: LostReason): void {
    this.#emit({ type: 'lost', name: lease.key, version: BigInt(lease.version), reason });
    this.#lost.abort(new LostError(`lock "${lease.key}" is lost: ${reason}`));
  }

  ask(lease: Lease, reason: AskedReason, until: number, now: number): void {
    const left = Math.max(until - now, 0);
    this.#askedUntil = Math.min(this.#askedUntil, until);
    this.#emit({ type: 'asked', name: lease.key, version: BigInt(lease.version), reason, left });
    this.#asked.abort(new AskedToYield(reason, left));
  }

  error(): LostError {
    const { reason } = this.#lost.signal as { reason?: unknown };
    return reason instanceof LostError ? reason : new LostError('the lock is not held');
  }
}
