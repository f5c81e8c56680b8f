// A real Redis of a test's own, without persistence.
import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createClient } from '@redis/client'
import { freePort } from './hub_process.ts'
import { until } from './until.ts'
import { removeFolder } from './folders.ts'
import { without } from './tools.ts'

/** The option `skip` of a test that needs Redis. */
export const withoutRedis = without('redis-server')

export interface TestRedis {
  readonly url: string
  readonly port: number
  /** One command, as its administrator. */
  command(...words: string[]): Promise<unknown>
  signal(signal: 'SIGSTOP' | 'SIGCONT'): void
  kill(): Promise<void>
  /** Starts again after `kill`, empty, on the same port. */
  start(): Promise<void>
  close(): Promise<void>
}

/** Starts one; `args` are those of redis-server, `tls` is a file of key and certificate. */
export async function startRedis(
  options: { password?: string; tls?: string } = {},
): Promise<TestRedis> {
  const { password, tls } = options
  const port = await freePort()
  const folder = mkdtempSync(join(tmpdir(), 'muster-redis-'))
  const credentials = password === undefined ? '' : `:${encodeURIComponent(password)}@`
  const url = `${tls ? 'rediss' : 'redis'}://${credentials}localhost:${port}`
  const ports = tls
    ? ['--port', '0', '--tls-port', String(port), '--tls-auth-clients', 'no']
    : ['--port', String(port)]
  const files = tls
    ? ['--tls-cert-file', tls, '--tls-key-file', tls, '--tls-ca-cert-file', tls]
    : []
  const secret = password === undefined ? [] : ['--requirepass', password]
  const quiet = ['--save', '', '--appendonly', 'no', '--loglevel', 'warning', '--dir', folder]
  let child: ChildProcess | undefined

  async function command(...words: string[]): Promise<unknown> {
    const socket = tls
      ? { tls: true as const, rejectUnauthorized: false, reconnectStrategy: false as const }
      : { reconnectStrategy: false as const }
    const client = createClient({ url, socket })
    client.on('error', () => {})
    try {
      await client.connect()
      return await client.sendCommand(words)
    } finally {
      client.destroy()
    }
  }

  async function start(): Promise<void> {
    const args = [...ports, ...files, ...secret, ...quiet, '--bind', '127.0.0.1']
    const started = spawn('redis-server', args, { stdio: ['ignore', 'pipe', 'pipe'] })
    child = started
    let output = ''
    started.stdout.on('data', (chunk) => (output += String(chunk)))
    started.stderr.on('data', (chunk) => (output += String(chunk)))
    started.on('error', (error) => (output += String(error)))
    await until('redis-server to answer', () => {
      if (started.pid === undefined || started.exitCode !== null) {
        throw new Error(`redis-server did not start: ${output}`)
      }
      return command('PING').then(
        () => true,
        () => false,
      )
    })
  }

  async function kill(): Promise<void> {
    if (!child || child.exitCode !== null || child.signalCode !== null) return
    const ended = once(child, 'exit')
    // It also ends a process that is stopped.
    child.kill('SIGKILL')
    await ended
  }

  await start()
  return {
    url,
    port,
    command,
    start,
    kill,
    signal: (signal) => void child?.kill(signal),
    async close() {
      await kill()
      removeFolder(folder)
    },
  }
}
