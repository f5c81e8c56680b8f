// The command that every command scenario sends, the requests that send it, and what is left of them.
import { requestBytes, type Answer, type Request } from './http_connection.ts'
import { openLoop, refusals } from './http_load.ts'
import type { Target } from './lab.ts'
import { signIn } from './operator.ts'
import type { Device } from './sim_agent.ts'

export const uptime = { action: 'run_command', payload: { command: 'uptime' } }
/** An access token lives 15 minutes; a load that runs longer signs in again in time. */
const signInMs = 10 * 60_000

/** The requests of `commandRequests` as values; their token lives for 15 minutes. */
export async function commandList(
  { origin, credentials }: Target,
  devices: readonly Device[],
  waitSeconds = 0,
): Promise<Request[]> {
  const query = waitSeconds > 0 ? `?wait=${waitSeconds}` : ''
  const headers = await signIn(origin, credentials)
  return devices.map(({ id }) => ({
    method: 'POST',
    path: `/api/v1/devices/${id}/commands${query}`,
    headers,
    body: uptime,
  }))
}

/**
 * Hands out requests, device after device, so that no device has two commands in flight while there
 * are more devices than connections.
 */
export async function commandRequests(
  target: Target,
  devices: readonly Device[],
  waitSeconds = 0,
): Promise<() => Buffer> {
  const build = async () => {
    const requests = await commandList(target, devices, waitSeconds)
    return requests.map((request) => requestBytes(target.origin, request))
  }
  let requests = await build()
  let signedInMs = performance.now()
  let next = 0
  return () => {
    if (performance.now() - signedInMs > signInMs) {
      signedInMs = performance.now()
      // The old token serves until then; were the sign-in refused, so would be the requests, and counted.
      build().then(
        (fresh) => (requests = fresh),
        () => undefined,
      )
    }
    return requests[next++ % requests.length]!
  }
}

/** `?wait` answers 202 with the command as it is; only one that ended well is a round trip. */
export const completed = { status: 202, holds: '"status":"completed"' } as const

export function isCompleted({ status, body }: Answer): boolean {
  return status === completed.status && body.includes(completed.holds)
}

const timedPerSecond = 200

/** Sends commands at 200/s in an open loop; the p99 of their round trips in milliseconds. Throws when one failed. */
export async function timedCommandsP99Ms(
  { side, origin }: Target,
  next: () => Buffer,
  seconds: number,
): Promise<number> {
  const load = await openLoop({
    origin,
    connections: 64,
    next,
    good: isCompleted,
    seconds,
    perSecond: timedPerSecond,
  })
  const refused = refusals(load)
  if (refused) throw new Error(`${side} did not complete every command: ${refused}`)
  return load.latencies.ms(99)
}

export interface StoredCommands {
  all: number
  /** Without an end. */
  open: number
}

/** What the hub's database holds; undefined for a hub whose database is not ours. */
export async function storedCommands({ database }: Target): Promise<StoredCommands | undefined> {
  const [row] =
    (await database?.read(
      `select count(*)::int as all,
         count(*) filter (where status in ('pending', 'sent', 'delivered', 'running'))::int as open
       from commands`,
    )) ?? []
  return row && { all: Number(row['all']), open: Number(row['open']) }
}
