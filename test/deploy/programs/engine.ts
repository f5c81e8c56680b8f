// A stand-in for `docker` that deploy.sh runs in tests: it keeps containers in a file, writes down every call, and
// fails where a test says so. It runs nothing.
import { appendFileSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { basename } from 'node:path'

export interface Container {
  image: string
  health: 'healthy' | 'unhealthy'
  /** The label `muster.settings`. */
  settings?: string
}
export interface State {
  containers: Record<string, Container>
  migrations: string[]
  backups: string[]
  /** Platform admins that accepted their invitation. */
  admins: number
  /** Tags whose hubs never become healthy. */
  sick: string[]
  /** A call that matches fails. */
  failing: string | null
}

const stateFile = process.env['ENGINE_STATE'] ?? ''
const callsFile = process.env['ENGINE_CALLS'] ?? ''
const state = JSON.parse(readFileSync(stateFile, 'utf8')) as State
const args = process.argv.slice(2)
const tag = process.env['MUSTER_TAG'] ?? ''

const line = args.join(' ').replace('--project-name muster ', '')
appendFileSync(callsFile, `${line}\n`)
if (state.failing !== null && new RegExp(state.failing).test(line)) {
  process.stderr.write(`engine: ${line} fails\n`)
  process.exit(1)
}
process.exitCode = run()
writeFileSync(stateFile, JSON.stringify(state))

function run(): number {
  const [command = '', ...rest] = args
  switch (command) {
    case 'info':
      return 0
    case 'ps':
      return list(rest)
    case 'inspect':
      return inspect(rest)
    case 'exec':
      return print(
        state.containers[rest[0] ?? '']?.image
          .replace(/^.*:/, '')
          .replace(/-[0-9a-f]{12}(-changed)?$/, ''),
      )
    case 'stop':
      return state.containers[rest.at(-1) ?? ''] ? 0 : 1
    case 'rm':
      delete state.containers[rest.at(-1) ?? '']
      return 0
    case 'logs':
      return print('a last line')
    case 'compose':
      return compose(rest.slice(rest[0] === '--project-name' ? 2 : 0))
    default:
      return 125
  }
}

function compose([command = '', ...rest]: string[]): number {
  if (command === 'run') return runOnce(rest)
  if (command !== 'up') return 0
  const services = rest.filter((word) => !word.startsWith('-'))
  for (const service of services) {
    const number = /^hub-(\d)$/.exec(service)?.[1]
    if (number === undefined) add(`muster-${service}-1`)
    else {
      state.containers[`muster-hub-${number}`] ??= {
        image: `muster:${tag}`,
        health: state.sick.includes(tag) ? 'unhealthy' : 'healthy',
        settings: process.env['MUSTER_SETTINGS'] ?? '',
      }
    }
  }
  return 0
}

function runOnce(words: string[]): number {
  const text = words.join(' ')
  if (text.includes('to_regclass')) return print(state.migrations.length > 0 ? 'there' : 'none')
  if (text.includes('from users')) return print(String(state.admins))
  if (text.includes('psql')) return print(state.migrations.join('\n'))
  if (text.endsWith('backup newest')) return print(state.backups.at(-1))
  if (text.endsWith('backup once')) state.backups.push(`muster-${state.backups.length}.dump`)
  else if (text.endsWith('scripts/migrate.ts')) {
    state.migrations = readdirSync('migrations').map((file) => basename(file, '.sql'))
  } else if (text.includes('scripts/admin.ts invite')) {
    return print('https://hub.example.com/accept-invite#token=one-time')
  }
  return 0
}

function list(words: string[]): number {
  const filter = words.find((word) => word.startsWith('name=')) ?? ''
  if (filter === '') return 0
  const names = new RegExp(filter.slice('name='.length))
  return print(
    Object.keys(state.containers)
      .filter((name) => names.test(name))
      .join('\n'),
  )
}

function inspect(words: string[]): number {
  const found = state.containers[words.at(-1) ?? '']
  if (!found) return 1
  const asked = words.join(' ')
  if (asked.includes('muster.settings')) return print(found.settings)
  return print(asked.includes('Config.Image') ? found.image : found.health)
}

function add(name: string): void {
  state.containers[name] ??= { image: name, health: 'healthy' }
}

function print(text: string | undefined): number {
  if (text) process.stdout.write(`${text}\n`)
  return 0
}
