export type { LocksOptions } from './keeper.js';
export { AskedToYield, type AskedReason, type LockEvent, type LostReason } from './lease.js';
export { Lock, Locks, type LockMode, type LockName, type LockOptions } from './locks.js';
export {
  BusyError, ClosedError, DeadlockError, DeniedError, DlockError, InvalidArgumentError, LostError, NotReadyError,
  RefusedError, UnreachableError,
} from './protocol.js';
export type { Leader, LimitOptions, LockInfo, LockManagerSnapshot } from './request.js';
export type { Connection, Source } from './source.js';
