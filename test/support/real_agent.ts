// The real agent as a process, enrolled with a hub under test.
import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { enrollmentSecret, type TestHub } from './hub.ts'
import { removeFolder } from './folders.ts'
import { until } from './until.ts'

const main = fileURLToPath(new URL('../../agent/main.ts', import.meta.url))
/** MUSTER_TEST_AGENT names a compiled agent, to prove the same of it. */
const compiled = process.env['MUSTER_TEST_AGENT']
const [program, programArgs] = compiled ? [compiled, []] : [process.execPath, [main]]

export interface RunningAgent {
  deviceId: string
  pid: number
  /** Kills it and starts it again with the same identity. */
  restart(): Promise<void>
  stop(): Promise<void>
}

/** Enrolls an agent, runs it and waits until its device is online. */
export async function startAgentOf(
  hub: TestHub,
  { env = {}, origin = hub.origin }: { env?: Record<string, string>; origin?: string } = {},
): Promise<RunningAgent> {
  const home = mkdtempSync(join(tmpdir(), 'muster-agent-test-'))
  const state = join(home, 'state')
  // A prompt that no test takes for its output, whatever this machine is called.
  writeFileSync(join(home, '.profile'), "PS1='$ '\n")
  const start = (args: string[]) =>
    spawn(program, [...programArgs, ...args, '--state', state], {
      stdio: ['ignore', 'pipe', 'inherit'],
      // Shells read no profile of whoever runs the tests, and leave nothing in that home.
      env: { ...process.env, MUSTER_AGENT_HOME: home, ...env },
    })
  const enrolled = start(['enroll', '--url', origin, '--secret', enrollmentSecret])
  let said = ''
  enrolled.stdout.on('data', (chunk: Buffer) => (said += String(chunk)))
  await once(enrolled, 'close')
  const deviceId = /device (\S+)/.exec(said)?.[1]
  if (deviceId === undefined) throw new Error(`the agent did not enroll: ${said}`)
  let child: ChildProcess = start(['run'])
  child.stdout?.resume()
  const online = () =>
    until('the agent to be online', async () => {
      const { body } = await hub.get(`/devices/${deviceId}`)
      return body.status === 'online'
    })
  await online()
  return {
    deviceId,
    get pid() {
      return child.pid ?? 0
    },
    async restart() {
      child.kill('SIGKILL')
      await once(child, 'exit')
      child = start(['run'])
      child.stdout?.resume()
      await online()
    },
    async stop() {
      child.kill('SIGTERM')
      if (child.exitCode === null && child.signalCode === null) await once(child, 'exit')
      removeFolder(home)
    },
  }
}

/** Closes the device's socket as a network does: the agent comes back by itself. */
export function breakAgent(hub: TestHub, deviceId: string): void {
  const { shards } = hub.hub.ctx
  const out = Reflect.get(shards, 'sockets') as {
    openOf(shard: number): Iterable<{ conn: number; deviceId: string }>
    close(conn: number, code: number, reason: string): void
  }
  for (const { conn, deviceId: own } of out.openOf(shards.of(deviceId))) {
    if (own === deviceId) out.close(conn, 1012, 'test')
  }
}
