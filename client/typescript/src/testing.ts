// An in-memory fake for unit tests: a server that answers the statements of the protocol.

import { Locks } from './locks.js';
import type { LocksOptions } from './keeper.js';
import * as p from './protocol.js';
import { clock, type Param, type Row } from './protocol.js';
import type { Connection, Source } from './source.js';

interface Held {
  version: string;
  owner: string;
  value: string | null;
  /** 1: exclusive; Infinity: shared. */
  slots: number;
  ttl: number;
  atLeast: number;
  since: number;
  until: number;
  cooling: boolean;
  asked: boolean;
}

const msOf = (text: Param | undefined): number => parseInt(String(text), 10);
const column = (text: Param | undefined): string[] => JSON.parse(`[${String(text).slice(1, -1)}]`) as string[];

/**
 * All clients of one FakeServer share its locks.  It has no priorities, no tickets and no durability, and
 * times are those of this process.
 */
export class FakeServer {
  readonly #held = new Map<string, Held[]>();
  readonly #listeners = new Set<(payload: string) => void>();
  #version = 0;

  /** Locks of this server.  `tx` is what the body of `fenced()` is called with. */
  locks<Tx = undefined>(tx?: Tx, options: LocksOptions = {}): Locks<Tx> {
    const answer = (sql: string, params: readonly Param[]): Row[] => this.#answer(sql, params);
    const connect = (): Connection => ({
      pid: 0,
      query: (sql, params) => Promise.resolve().then(() => answer(sql, params)),
      destroy: () => undefined,
    });
    const source: Source<Tx> = {
      borrow: connect,
      open: (hear) => {
        this.#listeners.add(hear);
        return { ...connect(), destroy: () => void this.#listeners.delete(hear) };
      },
      transaction: async (fences, body) => {
        await fences((sql, params) => Promise.resolve().then(() => answer(sql, params)));
        return body(tx as Tx);
      },
    };
    return new Locks(source, options);
  }

  /** Take a lock away from all its holders. */
  take(name: string): void {
    const taken = this.#live(name);
    this.#held.delete(name);
    this.#tell('forced', name, taken);
  }

  /** Let another client have the lock. */
  hold(name: string): void {
    this.take(name);
    this.#grant(name, Infinity, 'another', null, 1, 0);
  }

  /** Ask the holders of a lock to yield, as a request with a higher priority does. */
  askToYield(name: string): void {
    const asked = this.#live(name);
    for (const held of asked) held.asked = true;
    this.#tell('preempt', name, asked);
  }

  #tell(event: string, key: string, whom: Held[]): void {
    for (const { version } of whom) {
      for (const hear of this.#listeners) hear(JSON.stringify({ event, key, version: Number(version) }));
    }
  }

  #live(key: string): Held[] {
    const live = (this.#held.get(key) ?? []).filter((held) => held.until > clock());
    this.#held.set(key, live);
    return live;
  }

  #find(key: Param | undefined, version: Param | undefined): Held | undefined {
    return this.#live(String(key)).find((held) => held.version === String(version) && !held.cooling);
  }

  #grant(key: string, ttl: number, owner: string, value: string | null, slots: number, atLeast: number): Held | null {
    const live = this.#live(key);
    const own = live.find((held) => held.owner === owner && !held.cooling);
    if (own !== undefined) return own;
    if (live.some((held) => held.slots === 1) || (live.length > 0 && slots === 1) || live.length >= slots) return null;
    const since = clock();
    const version = String(++this.#version);
    const held: Held = { version, owner, value, slots, ttl, atLeast, since, until: since + ttl, cooling: false, asked: false };
    live.push(held);
    return held;
  }

  #release(key: string, version: string): string {
    const held = this.#find(key, version);
    if (held === undefined) return 'not_held';
    held.cooling = true;
    held.until = held.since + held.atLeast;
    return 'released';
  }

  #refresh(key: Param | undefined, version: Param | undefined, value?: Param): string | null {
    const held = this.#find(key, version);
    if (held === undefined) return null;
    held.until = clock() + held.ttl;
    if (typeof value === 'string') held.value = value;
    return String(held.ttl);
  }

  #answer(sql: string, params: readonly Param[]): Row[] {
    const answer = this.#answers[sql.replaceAll('fake.', '@.')];
    if (answer === undefined) throw new p.DlockError(`the fake cannot answer: ${sql}`);
    return answer(params);
  }

  readonly #answers: Record<string, (params: readonly Param[]) => Row[]> = {
    [p.HELLO]: () => [['0', 'fake']],
    [p.FEATURES]: () => [['fake', '1.0', '{}']],
    [p.LISTEN]: () => [],
    [p.TRY]: ([key, ttl, owner, value, , , , slots, atLeast, , , shared]) => {
      const places = shared === true ? Infinity : Number(slots);
      const text = typeof value === 'string' ? value : null;
      return [[this.#grant(String(key), msOf(ttl), String(owner), text, places, msOf(atLeast))?.version ?? null]];
    },
    [p.TRY_ALL]: ([keys, ttl, owner, value, , slots, shared]) => {
      const [all, places, readers] = [column(keys), column(slots), column(shared)];
      const text = typeof value === 'string' ? value : null;
      const got = all.map((key, i) =>
        this.#grant(key, msOf(ttl), String(owner), text, readers[i] === 'true' ? Infinity : Number(places[i]), 0),
      );
      if (got.every((held) => held !== null)) return [[p.array(got.map((held) => Number(held.version))).replaceAll('"', '')]];
      for (const [i, held] of got.entries()) if (held !== null) this.#release(all[i] ?? '', held.version);
      return [[null]];
    },
    [p.RENEW]: ([keys, versions, , renew]) => {
      const [all, which, refreshed] = [column(keys), column(versions), column(renew)];
      return all.map((key, i) => {
        const lasts = refreshed[i] === 'true' ? this.#refresh(key, which[i]) : null;
        const held = this.#find(key, which[i]);
        const state = held === undefined ? 'held_by_other' : held.asked ? 'preempting' : 'held';
        return [String(i + 1), lasts, state, '1000'];
      });
    },
    [p.REFRESH]: ([key, version, , value]) => [[this.#refresh(key, version, value)]],
    [p.RELEASE]: ([keys, versions]) => {
      const which = column(versions);
      return column(keys).map((key, i) => [this.#release(key, which[i] ?? '')]);
    },
    [p.GIVE_BACK_PORTABLE]: ([keys]) => column(keys).map(() => ['released']),
    [p.FENCE]: ([key, version]) => {
      if (this.#find(key, version) !== undefined) return [['', String(version)]];
      const message = `lock "${String(key)}" is not held with version ${String(version)}`;
      throw Object.assign(new Error(message), { code: 'LK001', severity: 'ERROR' });
    },
    [p.LIMIT]: ([key, n, per]) => {
      const name = String(key);
      const held = this.#grant(name, msOf(per), p.newOwner(), null, Number(n), msOf(per));
      if (held === null) return [[String(Math.ceil(Math.min(...this.#live(name).map((h) => h.until)) - clock()))]];
      this.#release(name, held.version);
      return [['0']];
    },
    [p.GET]: ([key]) =>
      this.#live(String(key)).filter((h) => !h.cooling).reverse().map((h) => [h.version, h.owner, h.value, 'held']),
    [p.HELD]: ([key]) =>
      [...this.#held.keys()].filter((name) => key === null || name === key).flatMap((name) =>
        this.#live(name).map((h) =>
          [name, h.version, h.owner, 'fake', h.slots === Infinity ? null : String(h.slots), h.cooling ? 'cooling' : 'held']),
      ),
  };
}
