// The command that every command scenario sends, and the requests that send it.
import { requestBytes, type Answer } from './http_connection.ts'
import type { Target } from './lab.ts'
import { signIn } from './operator.ts'
import type { Device } from './sim_agent.ts'

const uptime = { action: 'run_command', payload: { command: 'uptime' } }

/**
 * Hands out requests, device after device, so that no device has two commands in flight while there
 * are more devices than connections. Signs in anew, so that no measurement outlives its access
 * token of 15 minutes.
 */
export async function commandRequests(
  target: Target,
  devices: readonly Device[],
  waitSeconds = 0,
): Promise<() => Buffer> {
  const headers = await signIn(target.origin, target.credentials)
  const query = waitSeconds > 0 ? `?wait=${waitSeconds}` : ''
  const requests = devices.map(({ id }) =>
    requestBytes(target.origin, {
      method: 'POST',
      path: `/api/v1/devices/${id}/commands${query}`,
      headers,
      body: uptime,
    }),
  )
  let next = 0
  return () => requests[next++ % requests.length]!
}

/** `?wait` answers 202 with the command as it is; only one that ended well is a round trip. */
export function isCompleted({ status, body }: Answer): boolean {
  return status === 202 && body.includes('"status":"completed"')
}
