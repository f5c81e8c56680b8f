// What an operator does before a load can start: signs in and enrolls devices, through the API, the
// same way for the hub and for its baseline.
import { HttpConnection, requestBytes } from './http_connection.ts'
import type { Device } from './sim_agent.ts'

export interface Credentials {
  email: string
  password: string
  enrollmentSecret: string
}

const enrollConnections = 32

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

/** Enrolls `count` devices, many at a time; `onCount` hears of every hundredth. */
export async function enroll(
  origin: string,
  { enrollmentSecret }: Credentials,
  count: number,
  onCount: (done: number) => void,
): Promise<Device[]> {
  const devices: Device[] = []
  let next = 0
  const work = async () => {
    const connection = await HttpConnection.open(origin)
    while (next < count) {
      const hostname = `bench-${String(next++).padStart(6, '0')}`
      const body = { enrollmentSecret, hostname, os: 'linux', arch: 'amd64', agentVersion: '1.0.0' }
      const request = { method: 'POST', path: '/api/v1/agents/enroll', body }
      const answer = await connection.send(requestBytes(origin, request))
      if (answer.status !== 201) {
        throw new Error(`enrollment was refused: ${answer.status} ${answer.body}`)
      }
      const { deviceId, agentToken } = JSON.parse(answer.body) as Record<string, string>
      devices.push({ id: deviceId ?? '', token: agentToken ?? '' })
      if (devices.length % 100 === 0) onCount(devices.length)
    }
    connection.close()
  }
  await Promise.all(Array.from({ length: Math.min(enrollConnections, count) }, work))
  return devices
}
