// A hub as a process of its own, for tests that kill it: started like `npm start`, on a port it keeps.
import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { createServer } from 'node:net'
import { fileURLToPath } from 'node:url'
import { until } from './until.ts'

const root = fileURLToPath(new URL('../..', import.meta.url))

export class HubProcess {
  output = ''
  private child: ChildProcess | undefined
  readonly port: number
  private readonly env: Record<string, string>
  private readonly folder: string

  /** Of the checkout in `folder`, of this one unless told. */
  constructor(port: number, env: Record<string, string>, folder = root) {
    this.port = port
    this.env = env
    this.folder = folder
  }

  get origin(): string {
    return `http://127.0.0.1:${this.port}`
  }

  get pid(): number {
    return this.child?.pid ?? 0
  }

  get ended(): boolean {
    const { child } = this
    return !child || child.exitCode !== null || child.signalCode !== null
  }

  /** Starts it and waits until it is ready. */
  async start(): Promise<void> {
    this.launch()
    await until(
      'the hub to be ready',
      async () => {
        if (this.ended) throw new Error(`the hub ended: ${this.output}`)
        return this.isReady()
      },
      60_000,
    )
  }

  /** What a health check asks. */
  async isReady(): Promise<boolean> {
    const answer = await fetch(`${this.origin}/health/ready`).catch(() => undefined)
    return answer?.status === 200
  }

  /** Starts it, and waits for nothing. */
  launch(): void {
    const env = { PATH: process.env['PATH'] ?? '', HOME: process.env['HOME'] ?? '', ...this.env }
    const child = spawn(process.execPath, ['src/start.js'], {
      cwd: this.folder,
      env: { LOG_LEVEL: 'warn', ...env, PORT: String(this.port) },
      stdio: ['ignore', 'pipe', 'pipe'],
    })
    this.child = child
    child.stdout.on('data', (chunk: Buffer) => (this.output += String(chunk)))
    child.stderr.on('data', (chunk: Buffer) => (this.output += String(chunk)))
  }

  async kill(signal: NodeJS.Signals): Promise<number | null> {
    const { child } = this
    if (!child || this.ended) return child?.exitCode ?? null
    const ended = once(child, 'exit')
    child.kill(signal)
    await ended
    return child.exitCode
  }
}

/** A port that is free now. */
export async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const address = server.address()
  server.close()
  await once(server, 'close')
  if (address === null || typeof address === 'string') throw new Error('no port')
  return address.port
}
