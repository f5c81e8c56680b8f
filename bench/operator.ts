// What an operator does before a load can start: signs in and enrolls devices, through the API, the
// same way for the hub and for its baseline.
import { HttpConnection, requestBytes } from './http_connection.ts'
import type { Device } from './sim_agent.ts'

export interface Credentials {
  email: string
  password: string
  enrollmentSecret: string
}

const connectionsMax = 32

/** Signs in and returns the header that every further request carries. */
export async function signIn(
  origin: string,
  { email, password }: Credentials,
): Promise<{ Authorization: string }> {
  const answer = await fetch(`${origin}/api/v1/auth/login`, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify({ email, password }),
  })
  if (!answer.ok) throw new Error(`sign-in was refused: ${answer.status} ${await answer.text()}`)
  const { accessToken } = (await answer.json()) as { accessToken: string }
  return { Authorization: `Bearer ${accessToken}` }
}

/** One request, JSON in and out; throws when it is refused. */
export type Api = <T>(method: string, path: string, body?: unknown) => Promise<T>

/** The API below /api/v1 as somebody who signed in. */
export function apiOf(origin: string, headers: { Authorization: string }): Api {
  return async <T>(method: string, path: string, body?: unknown) => {
    const answer = await fetch(`${origin}/api/v1${path}`, {
      method,
      headers: { ...headers, ...(body ? { 'Content-Type': 'application/json' } : {}) },
      ...(body ? { body: JSON.stringify(body) } : {}),
    })
    if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${await answer.text()}`)
    // The hub's own schema: what a bench reads of it is what it asked for.
    return (await answer.json()) as T
  }
}

/** Enrolls `count` devices, many at a time; `onDevice` hears of each, and may throw to end it. */
export async function enroll(
  origin: string,
  { enrollmentSecret }: Credentials,
  count: number,
  onDevice: (device: Device, done: number) => void,
): Promise<void> {
  let done = 0
  await inParallel(origin, count, async (connection, index) => {
    onDevice(await enrollOne(origin, enrollmentSecret, connection, index), ++done)
  })
}

/** Enrolls one device over a connection that is there; `index` becomes its host name. */
export async function enrollOne(
  origin: string,
  enrollmentSecret: string,
  connection: HttpConnection,
  index: number,
): Promise<Device> {
  const hostname = `bench-${String(index).padStart(6, '0')}`
  const body = { enrollmentSecret, hostname, os: 'linux', arch: 'amd64', agentVersion: '1.0.0' }
  const request = { method: 'POST', path: '/api/v1/agents/enroll', body }
  const answer = await connection.send(requestBytes(origin, request))
  if (answer.status !== 201) {
    throw new Error(`enrollment was refused: ${answer.status} ${answer.body}`)
  }
  const { deviceId, agentToken } = JSON.parse(answer.body) as Record<string, string>
  return { id: deviceId ?? '', token: agentToken ?? '' }
}

/** Decommissions devices, many at a time; those that are gone already count as done. */
export async function decommission(
  origin: string,
  credentials: Credentials,
  devices: readonly Device[],
  onCount: (done: number) => void,
): Promise<void> {
  const headers = await signIn(origin, credentials)
  let done = 0
  await inParallel(origin, devices.length, async (connection, index) => {
    const path = `/api/v1/devices/${devices[index]!.id}`
    const answer = await connection.send(requestBytes(origin, { method: 'DELETE', path, headers }))
    if (answer.status !== 200 && answer.status !== 409) {
      throw new Error(`decommissioning was refused: ${answer.status} ${answer.body}`)
    }
    if (++done % 100 === 0) onCount(done)
  })
}

/**
 * Does a piece of work for each index below `count`, on as many connections as a hub takes easily. Where one fails no
 * more are begun, and it throws once those under way have ended: what they bring is known by then.
 */
async function inParallel(
  origin: string,
  count: number,
  work: (connection: HttpConnection, index: number) => Promise<void>,
): Promise<void> {
  let next = 0
  const serve = async () => {
    const connection = await HttpConnection.open(origin)
    try {
      while (next < count) await work(connection, next++)
    } catch (error) {
      next = count
      throw error
    } finally {
      connection.close()
    }
  }
  const ended = await Promise.allSettled(
    Array.from({ length: Math.min(connectionsMax, count) }, serve),
  )
  const failure = ended.find(({ status }) => status === 'rejected')
  if (failure?.status === 'rejected') throw failure.reason
}
