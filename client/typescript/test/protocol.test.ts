// The pure parts: statements, values, errors, and how long a lock is ours.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { readFileSync } from 'node:fs';
import { uptime } from 'node:os';
import { Grant, type LockEvent } from '../src/lease.js';
import * as p from '../src/protocol.js';

const statements = Object.entries(p).filter((entry): entry is [string, string] =>
  typeof entry[1] === 'string' && entry[1].startsWith("SELECT")); // prettier-ignore

test('statements depend on no search_path', () => {
  assert.ok(statements.length > 15);
  for (const [name, text] of statements) {
    assert.doesNotMatch(text, / (=|<>|-|\*|\|\||<|>) /, `${name}: an operator without a schema`);
    assert.doesNotMatch(text, /::(?!pg_catalog\.\w)/, `${name}: a type without a schema`);
    assert.doesNotMatch(text, /(?<![.\w])(?!EXTRACT|FROM|VALUES)[a-z_]\w*\((?!SELECT)(?<! AS u\(| AS l\()/, `${name}: a function`);
    for (const [, parameter] of text.matchAll(/(\$\d+)(?!::|\d)/g)) {
      assert.fail(`${name}: ${parameter ?? ''} is not cast`);
    }
  }
});

test('statements are those of docs/protocol.md', () => {
  const page = readFileSync(new URL('../../../../docs/protocol.md', import.meta.url), 'utf8');
  const words = (text: string): Set<string> => new Set(text.match(/@\.\w+|\b\w+ => /g) ?? []);
  const known = words(page);
  for (const [name, text] of statements) {
    for (const word of words(text)) {
      if (!/LIST|HELD|PENDING/.test(name)) assert.ok(known.has(word), `${name} has ${word}`);
    }
  }
});

test('a limit is rounded up, because zero is "go ahead"', () => {
  assert.match(p.LIMIT, /SELECT pg_catalog\.ceil\(EXTRACT\(EPOCH FROM @\.dlock_limit/);
});

test('arrays and intervals', () => {
  assert.equal(p.array(['a', 'b"c', 'd\\e', null, 7, true]), '{"a","b\\"c","d\\\\e",NULL,"7","true"}');
  assert.deepEqual(p.list('{1,23}'), ['1', '23']);
  assert.deepEqual(p.list('{}'), []);
  assert.equal(p.interval(1500.4), '1500 milliseconds');
  assert.equal(p.interval(Infinity), null);
});

test('which answers mean "ask again"', () => {
  const kind = (code: string | undefined): string => p.errorOf(code, 'message').name;
  for (const code of [undefined, '08006', '57P01', '57P03', '25006', '25P04', '53300']) {
    assert.equal(kind(code), 'UnreachableError', code);
  }
  assert.deepEqual(
    ['55P03', '40P01', '42501', '28000', '22023', '55000', '42883', '0A000', 'LK001', '57014', '53400', 'LK002'].map(kind),
    ['RefusedError', 'DeadlockError', 'DeniedError', 'DeniedError', 'InvalidArgumentError', 'NotReadyError',
      'NotReadyError', 'NotReadyError', 'LostError', 'DlockError', 'DlockError', 'DlockError'],
  );
  // the code of the operating system looks like an SQLSTATE
  assert.equal(p.translate(Object.assign(new Error('write EPIPE'), { code: 'EPIPE' })).code, undefined);
  assert.ok(p.translate('what?') instanceof p.UnreachableError);
  const cause = Object.assign(new Error('no'), { code: '42501', severity: 'ERROR' });
  assert.equal(p.translate(cause).cause, cause);
});

test('the clock does not stand still while the machine is suspended', { skip: process.platform !== 'linux' }, () => {
  const [clock, before] = [p.clock(), uptime() * 1000];
  assert.ok(Math.abs(clock - before) < 1_000);
  assert.ok(p.clock() >= clock);
});

const make = (options: { ttl: number; maxHold?: number }, events: LockEvent[] = []): Grant => {
  const grant = new Grant(['a', 'b'], ['1', '2'], 'owner', options, (event) => events.push(event));
  for (const lease of grant.leases) lease.renewed(p.clock());
  return grant;
};

test('a lease ends at nine tenths of what the server says is left, counted from when it was asked', () => {
  const [lease] = make({ ttl: 10_000 }).leases;
  assert.ok(lease !== undefined);
  lease.renewed(1_000);
  assert.deepEqual([lease.deadline, lease.dangerAt], [10_000, 7_000]);
  assert.ok(lease.due >= 1_000 + 3_000 && lease.due <= 1_000 + 3_667);
  lease.renewed(1_000, 5_000); // a policy's max_hold
  assert.equal(lease.deadline, 5_500);
  lease.renewed(1_000, 20_000);
  assert.equal(lease.deadline, 10_000);
});

test('a lost lease never comes back, and one loss is the loss of all', () => {
  const events: LockEvent[] = [];
  const grant = make({ ttl: 10_000 }, events);
  const [lease] = grant.leases;
  assert.ok(grant.isHeld(p.clock()) && !grant.signal.aborted);
  assert.equal(grant.isHeld(p.clock() + 9_500), false);
  lease?.renewed(p.clock());
  assert.equal(grant.isHeld(p.clock()), false);
  assert.ok(grant.signal.reason instanceof p.LostError);
  assert.deepEqual(events.map(({ type, name }) => `${type} ${name}`), ['lost a', 'lost b']);
});

test('why it is lost', () => {
  const reason = (prepare: (grant: Grant) => void): unknown => {
    const events: LockEvent[] = [];
    const grant = make({ ttl: 10_000 }, events);
    prepare(grant);
    return events.map((event) => (event.type === 'lost' ? event.reason : event.type))[0];
  };
  const first = (grant: Grant): Grant['leases'][number] => grant.leases[0] ?? assert.fail();
  assert.equal(reason((grant) => { first(grant).gone('not_held'); }), 'expired');
  assert.equal(reason((grant) => { first(grant).gone('held_by_other'); }), 'forced');
  assert.equal(reason((grant) => { first(grant).forced = true; first(grant).gone('not_held'); }), 'forced');
  assert.equal(reason((grant) => { first(grant).preempting = true; first(grant).gone('held_by_other'); }), 'preempted');
});
