// What only builds for tests can do: die at a named point, or be broken in a way that an upgrade must survive.
// Any other build lacks the constant, and nothing in the environment can bring it.

import { closeSync, openSync } from 'node:fs'

/** Put in by the build of a binary for tests. */
declare const MUSTER_TEST_BUILD: 'faults' | 'crashes' | 'hangs' | 'deaf' | undefined

const kind = typeof MUSTER_TEST_BUILD === 'undefined' ? null : MUSTER_TEST_BUILD

/**
 * A point at which a test may kill the agent: MUSTER_AGENT_FAULT is `<point>:<self|tree>:<marker file>`, and
 * the marker, which must not exist yet, makes it happen once.
 */
export function killPoint(point: string): void {
  if (kind === null) return
  const [wanted, whom, ...marker] = (process.env['MUSTER_AGENT_FAULT'] ?? '').split(':')
  if (wanted !== point || !makeMarker(marker.join(':'))) return
  process.kill(whom === 'tree' ? 0 : process.pid, 'SIGKILL')
  hang()
}

/** Breaks here what a test build is to break. */
export function breakAtStart(): void {
  if (kind === 'crashes') throw new Error('this build crashes at start')
  if (kind === 'hangs') hang()
}

/** Where this build looks for its hub: a deaf one where nobody is. */
export function hubAddress(url: string): string {
  return kind === 'deaf' ? 'ws://127.0.0.1:9/nobody' : url
}

function makeMarker(path: string): boolean {
  try {
    closeSync(openSync(path, 'wx'))
    return true
  } catch {
    return false
  }
}

function hang(): never {
  for (;;) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)
}
