// What deploy.sh asks of docker, carried out with processes: a hub's container is a hub of that version's checkout with
// the environment of the compose file, Caddy's is Caddy, and what runs once in an image runs once in the checkout.
import { execFile } from 'node:child_process'
import { createServer, type Server } from 'node:http'
import { once } from 'node:events'
import { mkdirSync } from 'node:fs'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import pg from 'pg'
import type { EngineAnswer, EngineCall } from '../deploy/programs/forward.ts'
import { TestCaddy } from './caddy.ts'
import { readCompose } from './compose.ts'
import { freePort, HubProcess } from './hub_process.ts'

interface Container {
  tag: string
  labels: Record<string, string>
  hub: HubProcess
}

const done: EngineAnswer = { code: 0, out: '', err: '' }
const failed = (err: string): EngineAnswer => ({ code: 1, out: '', err: `${err}\n` })
const say = (out: string): EngineAnswer => ({ code: 0, out: out === '' ? '' : `${out}\n`, err: '' })

export class HubEngine {
  /** Every call in the words of its caller, without the name of the project. */
  readonly calls: string[] = []
  caddy: TestCaddy | undefined
  private readonly folder: string
  private readonly caddyPort: number
  private readonly domain: string
  private readonly server: Server
  /** The checkout that an image was built from, by tag. */
  private readonly images = new Map<string, string>()
  private readonly containers = new Map<string, Container>()
  private readonly ports = new Map<string, number>()

  private constructor(folder: string, domain: string, caddyPort: number) {
    this.folder = folder
    this.domain = domain
    this.caddyPort = caddyPort
    this.server = createServer((request, response) => {
      let text = ''
      request.on('data', (chunk) => (text += String(chunk)))
      request.on('end', () => {
        void this.answer(JSON.parse(text) as EngineCall)
          .catch((error: unknown) => failed(String(error)))
          .then((answer) => response.end(JSON.stringify(answer)))
      })
    })
  }

  static async start(folder: string, domain: string): Promise<HubEngine> {
    const engine = new HubEngine(folder, domain, await freePort())
    engine.server.listen(0, '127.0.0.1')
    await once(engine.server, 'listening')
    return engine
  }

  get url(): string {
    return `http://127.0.0.1:${(this.server.address() as AddressInfo).port}`
  }

  /** Where Caddy listens, in the place of 443. */
  get edge(): string {
    return `127.0.0.1:${this.caddyPort}`
  }

  /** The tags of the hubs that run, by container. */
  running(): Record<string, string> {
    const living = [...this.containers].filter(([, { hub }]) => !hub.ended)
    return Object.fromEntries(living.map(([name, { tag }]) => [name, tag]))
  }

  /** The addresses of the hubs themselves, behind Caddy. */
  origins(): string[] {
    return [...this.containers.values()].map(({ hub }) => hub.origin)
  }

  async close(): Promise<void> {
    await this.caddy?.kill()
    await Promise.all([...this.containers.values()].map(({ hub }) => hub.kill('SIGKILL')))
    this.server.close()
  }

  private async answer(call: EngineCall): Promise<EngineAnswer> {
    const line = call.args.join(' ').replace('--project-name muster ', '')
    this.calls.push(line)
    const [command = '', ...rest] = call.args
    const name = rest.at(-1) ?? ''
    switch (command) {
      case 'info':
        return done
      case 'ps':
        return this.list(rest)
      case 'inspect':
        return this.inspect(name, line)
      case 'exec':
        return this.execute(rest)
      case 'stop':
        return this.stop(name)
      case 'rm':
        return this.remove(name)
      case 'logs':
        return say(this.containers.get(name)?.hub.output.split('\n').slice(-30).join('\n') ?? '')
      case 'compose':
        return this.compose(line.slice('compose '.length), call)
      default:
        return failed(`the engine knows no ${line}`)
    }
  }

  private async compose(line: string, call: EngineCall): Promise<EngineAnswer> {
    if (line === 'version' || line.startsWith('up --detach --wait')) return done
    if (line === 'build hub-1') {
      this.images.set(call.env['MUSTER_TAG'] ?? '', call.cwd)
      return done
    }
    const number = /^up --detach --no-deps hub-(\d)$/.exec(line)?.[1]
    if (number !== undefined) return this.startHub(number, call.env)
    if (line.startsWith('up ') && line.includes(' caddy ')) return this.startCaddy(call.env)
    if (line.startsWith('exec -T caddy caddy reload')) {
      await this.caddy?.reload()
      return done
    }
    if (line.startsWith('run ')) return this.runOnce(line, call)
    return failed(`the engine knows no compose ${line}`)
  }

  private async startHub(number: string, env: Record<string, string>): Promise<EngineAnswer> {
    const tag = env['MUSTER_TAG'] ?? ''
    const checkout = this.images.get(tag)
    if (checkout === undefined) return failed(`there is no image muster:${tag}`)
    const { labels = {} } = service(env)
    const name = `muster-hub-${number}`
    if (this.containers.has(name)) return done
    const hub = new HubProcess(await this.portOf(name), this.environment(name, env), checkout)
    hub.launch()
    this.containers.set(name, { tag, labels, hub })
    return done
  }

  /** What the compose file gives a hub, with the places of this machine in that of a container's. */
  private environment(name: string, env: Record<string, string>): Record<string, string> {
    const dataDir = join(this.folder, name)
    mkdirSync(dataDir, { recursive: true })
    return {
      ...variables(env),
      HOST: '127.0.0.1',
      DATA_DIR: dataDir,
      AGENT_RELEASES_DIR: join(this.folder, 'releases'),
      AGENT_RELEASE_KEYS: join(this.folder, 'release-keys'),
      REDIS_URL: '',
      LOG_LEVEL: 'warn',
      LIMIT_API: '0',
    }
  }

  /** A container keeps its address when another takes its place. */
  private async portOf(name: string): Promise<number> {
    const port = this.ports.get(name) ?? (await freePort())
    this.ports.set(name, port)
    return port
  }

  private async startCaddy({ HUBS = '' }: Record<string, string>): Promise<EngineAnswer> {
    const hubs = HUBS.split(' ').map((address) => {
      const port = this.ports.get(address.replace(/:8080$/, ''))
      return `127.0.0.1:${port}`
    })
    const { folder, caddyPort: port, domain: name } = this
    this.caddy ??= await TestCaddy.start({ folder, port, hubs, name })
    return done
  }

  private async runOnce(line: string, call: EngineCall): Promise<EngineAnswer> {
    if (line.includes('psql')) return this.query(call.env, call.args.at(-1) ?? '')
    // Dumps and what is in them: backup.test.ts.
    if (/ backup (once|newest|999:999 \/backups)$/.test(line)) return done
    const script = /^run --rm --no-deps -T hub-1 node (.+)$/.exec(line)?.[1]
    if (script === undefined) return failed(`the engine knows no compose ${line}`)
    const checkout = this.images.get(call.env['MUSTER_TAG'] ?? '')
    const env = this.environment('once', call.env)
    return run(script.split(' '), { cwd: checkout ?? '', env })
  }

  private async query(env: Record<string, string>, statement: string): Promise<EngineAnswer> {
    const client = new pg.Client(variables(env)['DATABASE_URL'])
    await client.connect()
    try {
      const { rows } = await client.query<unknown[]>({ text: statement, rowMode: 'array' })
      return say(rows.map((row) => row.join('|')).join('\n'))
    } finally {
      await client.end()
    }
  }

  private list(words: string[]): EngineAnswer {
    const filter = words.find((word) => word.startsWith('name='))
    const pattern = new RegExp(filter?.slice('name='.length) ?? '$^')
    return say(
      Object.keys(this.running())
        .filter((name) => pattern.test(name))
        .join('\n'),
    )
  }

  private async inspect(name: string, line: string): Promise<EngineAnswer> {
    if (name === 'muster-caddy-1') return say((await this.caddy?.isHealthy()) ? 'healthy' : 'gone')
    const container = this.containers.get(name)
    if (container === undefined) return failed(`no such container: ${name}`)
    if (line.includes('Config.Image')) return say(`muster:${container.tag}`)
    const label = /Labels "([^"]+)"/.exec(line)?.[1]
    if (label !== undefined) return say(container.labels[label] ?? '')
    if (container.hub.ended) return say('exited')
    return say((await container.hub.isReady()) ? 'healthy' : 'starting')
  }

  private async execute([name = '', ...words]: string[]): Promise<EngineAnswer> {
    const { hub } = this.containers.get(name) ?? {}
    if (hub === undefined || words[0] !== 'node') return failed(`nothing to run in ${name}`)
    const args = words.slice(1).map((word) => word.replace(':8080', `:${hub.port}`))
    return run(args, { cwd: this.folder, env: {} })
  }

  private async stop(name: string): Promise<EngineAnswer> {
    const container = this.containers.get(name)
    if (container === undefined) return failed(`no such container: ${name}`)
    await container.hub.kill('SIGTERM')
    return done
  }

  private async remove(name: string): Promise<EngineAnswer> {
    await this.containers.get(name)?.hub.kill('SIGKILL')
    this.containers.delete(name)
    return done
  }
}

function service(env: Record<string, string>) {
  const { 'hub-1': hub } = readCompose(env).services
  if (hub === undefined) throw new Error('the compose file has no hub')
  return hub
}

/** What is set to nothing is empty in a container; here it was read as null. */
function variables(env: Record<string, string>): Record<string, string> {
  const pairs = Object.entries(service(env).environment ?? {})
  return Object.fromEntries(pairs.map(([name, value]) => [name, value ?? '']))
}

function run(
  args: string[],
  { cwd, env }: { cwd: string; env: Record<string, string> },
): Promise<EngineAnswer> {
  return new Promise((resolve) => {
    execFile(process.execPath, args, { cwd, env }, (error, out, err) =>
      resolve({ code: error === null ? 0 : 1, out, err }),
    )
  })
}
