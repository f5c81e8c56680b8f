// A device as its service manager sees it: a folder with the program and its state, and a supervised agent that
// is started and killed like a service. Its binaries are built for the test that asks for them.
import assert from 'node:assert/strict'
import { execFile, spawn, type ChildProcess } from 'node:child_process'
import { createPublicKey, generateKeyPairSync, type KeyObject } from 'node:crypto'
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  readdirSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { agentFileName, keyIdOf, publicKeyOf } from '../../src/release_manifest.ts'
import { buildAgent, thisPlatform } from '../../scripts/release/build.ts'
import { signRelease } from '../../scripts/release/sign.ts'
import { removeFolder } from './folders.ts'
import { enrollmentSecret, type TestHub } from './hub.ts'
import { until } from './until.ts'

const run = promisify(execFile)

export type TestBuild = 'faults' | 'crashes' | 'hangs' | 'deaf'

/** Keys and signed releases in a folder of their own. */
export class Releases {
  readonly folder = mkdtempSync(join(tmpdir(), 'muster-releases-'))
  readonly keysFolder = join(this.folder, 'keys')
  readonly key: KeyObject
  readonly publicKey: string

  constructor() {
    this.key = generateKeyPairSync('ed25519').privateKey
    this.publicKey = publicKeyOf(this.key)
    mkdirSync(this.keysFolder)
    this.trust(this.key)
  }

  /** Builds and signs a release of this machine's platform; returns its program. */
  async build(version: string, kind: TestBuild): Promise<string> {
    const program = await buildAgent({
      version,
      platform: thisPlatform(),
      out: this.at(version),
      keys: [this.publicKey],
      defines: { MUSTER_TEST_BUILD: kind },
    })
    await this.sign(version)
    return program
  }

  /** The environment of a hub that offers these. */
  get env(): Record<string, string> {
    return {
      AGENT_RELEASES_DIR: join(this.folder, 'releases'),
      AGENT_RELEASE_KEYS: this.keysFolder,
    }
  }

  /** Lets the hub know a key. */
  trust(key: KeyObject): void {
    const open = createPublicKey(key)
    const name = `${keyIdOf(publicKeyOf(key))}.pub`
    writeFileSync(join(this.keysFolder, name), open.export({ type: 'spki', format: 'pem' }))
  }

  /** Resolves when the hub offers every release there is. */
  async offered(hub: TestHub): Promise<void> {
    const count = readdirSync(join(this.folder, 'releases')).length
    await until('the hub to offer the releases', async () => {
      const { status, body } = await hub.get('/agents/releases')
      if (status !== 200) return false
      const refused = body.refused.filter(({ code }: { code: string }) => code !== 'CHECKING')
      assert.deepEqual(refused, [])
      return body.data.length === count
    })
  }

  /** A release of nothing but a header: enough for a hub, which never runs it. */
  async pretend(version: string, key = this.key, header = linuxHeader): Promise<string> {
    mkdirSync(this.at(version), { recursive: true })
    const name = agentFileName(version, { os: 'linux', arch: 'amd64' })
    const path = join(this.at(version), name)
    writeFileSync(path, header, { mode: 0o755 })
    await this.sign(version, key)
    return path
  }

  async sign(version: string, key = this.key, minimumVersion: string | null = null) {
    return signRelease({ folder: this.at(version), key, minimumVersion, say: () => {} })
  }

  program(version: string): string {
    return join(this.at(version), agentFileName(version, thisPlatform()))
  }

  at(version: string): string {
    return join(this.folder, 'releases', version)
  }

  remove(): void {
    removeFolder(this.folder)
  }
}

/** ELF, 64 bits, little-endian, an executable for the processor of this number. */
export function elfHeader(machine: number): Buffer {
  const header = Buffer.alloc(64)
  header.write('\x7fELF\x02\x01\x01', 0, 'latin1')
  header.writeUInt16LE(2, 16)
  header.writeUInt16LE(machine, 18)
  return header
}

const linuxHeader = elfHeader(0x3e)

export class Machine {
  readonly folder = mkdtempSync(join(tmpdir(), 'muster-machine-'))
  readonly program = join(this.folder, 'muster-agent')
  readonly state = join(this.folder, 'state')
  deviceId = ''
  private child: ChildProcess | undefined
  private exited: Promise<void> = Promise.resolve()

  /** Puts a program on the machine and enrolls it. */
  static async enrolled(program: string, origin: string, secret = enrollmentSecret) {
    const machine = new Machine()
    // Not a link: the hub would see that one of its files changed.
    copyFileSync(program, machine.program)
    const args = ['--url', origin, '--secret', secret, '--state', machine.state]
    await run(machine.program, ['enroll', ...args])
    machine.deviceId = (machine.read('identity.json') as { deviceId: string }).deviceId
    return machine
  }

  /** Starts the installed program under its supervisor, in a process group of its own. */
  start(env: Record<string, string> = {}): void {
    assert.ok(!this.runs, 'it runs already')
    assert.ok(existsSync(this.program), 'the program is gone from its place')
    this.spawn(['run', '--supervised', '--state', this.state], env)
  }

  /** Starts it without a supervisor. */
  startAlone(): void {
    this.spawn(['run', '--state', this.state], {})
  }

  private spawn(args: string[], env: Record<string, string>): void {
    const child = spawn(this.program, args, {
      detached: true,
      stdio: ['ignore', 'ignore', 'ignore'],
      env: { ...process.env, MUSTER_AGENT_TRIAL_SECONDS: '10', ...env },
    })
    this.child = child
    this.exited = new Promise((resolve) => child.once('exit', () => resolve()))
  }

  /** Whether the supervisor runs. */
  get runs(): boolean {
    return (
      this.child !== undefined && this.child.exitCode === null && this.child.signalCode === null
    )
  }

  /** As a service manager does: what ended is started again, until this is disposed of. */
  keptUp(): Disposable {
    const timer = setInterval(() => this.runs || this.start(), 50)
    return { [Symbol.dispose]: () => clearInterval(timer) }
  }

  /** A file of the state folder, as JSON; undefined where there is none. */
  read(name: string): unknown {
    const path = join(this.state, name)
    return existsSync(path) ? JSON.parse(readFileSync(path, 'utf8')) : undefined
  }

  log(): string {
    const path = join(this.state, 'agent.log')
    return existsSync(path) ? readFileSync(path, 'utf8') : ''
  }

  async installedVersion(): Promise<string> {
    return (await run(this.program, ['version'])).stdout.trim()
  }

  async stop(): Promise<void> {
    if (this.runs) this.child?.kill('SIGTERM')
    await this.exited
  }

  async remove(): Promise<void> {
    await this.stop()
    // A trial that was made deaf may have outlived its supervisor.
    if (this.child?.pid) killGroup(this.child.pid)
    removeFolder(this.folder)
  }
}

function killGroup(pid: number): void {
  try {
    process.kill(-pid, 'SIGKILL')
  } catch {
    // Nothing of it is left.
  }
}
