// Caddy with the Caddyfile of deploy/ and an authority of its own in place of a public one, and a client that trusts it.
import { execFile, spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import type { IncomingMessage } from 'node:http'
import { request } from 'node:https'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { freePort } from './hub_process.ts'
import { until } from './until.ts'

const caddyfile = join(import.meta.dirname, '..', '..', 'deploy', 'Caddyfile')

export interface CaddyAsk {
  headers?: Record<string, string>
  body?: unknown
  localAddress?: string
}

export interface CaddyOptions {
  /** Where it keeps its certificates and its authority. */
  folder: string
  port: number
  /** `127.0.0.1:PORT` of each hub. */
  hubs: string[]
  /** A name beside localhost that it has a certificate for. */
  name?: string
}

export class TestCaddy {
  /** The certificate of its authority, and the file it is in. */
  ca: Buffer = Buffer.alloc(0)
  readonly caFile: string
  readonly origin: string
  private readonly env: Record<string, string>
  private readonly adminPort: number
  private child: ChildProcess | undefined

  private constructor(options: CaddyOptions, adminPort: number) {
    const { folder, port, hubs, name } = options
    this.adminPort = adminPort
    this.origin = `https://localhost:${port}`
    this.caFile = join(folder, 'data', 'caddy', 'pki', 'authorities', 'local', 'root.crt')
    const lines = [
      `admin 127.0.0.1:${adminPort}`,
      'skip_install_trust',
      'auto_https disable_redirects',
      'local_certs',
    ]
    this.env = {
      PATH: process.env['PATH'] ?? '',
      HOME: folder,
      XDG_DATA_HOME: join(folder, 'data'),
      XDG_CONFIG_HOME: join(folder, 'config'),
      SERVICE_DOMAIN: [this.origin, ...(name ? [`https://${name}:${port}`] : [])].join(', '),
      ACME_EMAIL: 'ops@example.com',
      HUBS: hubs.join(' '),
      GRAFANA: '127.0.0.1:1',
      CADDY_OPTIONS: lines.join('\n'),
    }
  }

  /** Starts it, and waits until a hub answers through it. */
  static async start(options: CaddyOptions): Promise<TestCaddy> {
    const caddy = new TestCaddy(options, await freePort())
    await caddy.run()
    return caddy
  }

  private async run(): Promise<void> {
    const args = ['run', '--config', caddyfile, '--adapter', 'caddyfile']
    const child = spawn('caddy', args, { env: this.env, stdio: ['ignore', 'ignore', 'pipe'] })
    this.child = child
    let log = ''
    child.stderr.on('data', (chunk) => (log += String(chunk)))
    await until('Caddy to answer', async () => {
      if (child.exitCode !== null) throw new Error(`Caddy ended: ${log}`)
      try {
        this.ca = readFileSync(this.caFile)
        return (await this.ask('GET', '/health/ready')).status === 200
      } catch {
        return false
      }
    })
  }

  /** What the health check of its container asks. */
  async isHealthy(): Promise<boolean> {
    const address = `http://127.0.0.1:${this.adminPort}/config/`
    const answer = await fetch(address).catch(() => undefined)
    return answer?.ok === true
  }

  async reload(): Promise<void> {
    const from = ['--config', caddyfile, '--adapter', 'caddyfile']
    const args = ['reload', ...from, '--address', `127.0.0.1:${this.adminPort}`]
    await promisify(execFile)('caddy', args, { env: this.env })
  }

  open(method: string, path: string, ask: CaddyAsk = {}): Promise<IncomingMessage> {
    const { headers, body, localAddress } = ask
    const content = body === undefined ? undefined : JSON.stringify(body)
    const { promise, resolve, reject } = Promise.withResolvers<IncomingMessage>()
    const type = content === undefined ? {} : { 'content-type': 'application/json' }
    const asked = request(`${this.origin}${path}`, {
      method,
      ca: this.ca,
      family: 4,
      headers: { ...type, ...headers },
      ...(localAddress === undefined ? {} : { localAddress }),
    })
    asked.on('response', resolve).on('error', reject).end(content)
    return promise
  }

  async ask(method: string, path: string, ask: CaddyAsk = {}) {
    const answer = await this.open(method, path, ask)
    const chunks: Buffer[] = []
    for await (const chunk of answer) chunks.push(chunk as Buffer)
    const text = Buffer.concat(chunks).toString()
    const isJson = /json/.test(answer.headers['content-type'] ?? '')
    return {
      status: answer.statusCode ?? 0,
      headers: answer.headers,
      body: isJson ? JSON.parse(text) : undefined,
    }
  }

  async kill(): Promise<void> {
    const { child } = this
    if (!child || child.exitCode !== null || child.signalCode !== null) return
    const ended = once(child, 'exit')
    child.kill('SIGKILL')
    await ended
  }
}
