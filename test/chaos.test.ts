// What dies, and what then happens: a thousand agents and five thousand commands, while a shard thread,
// PostgreSQL, the hub or the agents are killed. Every command that was accepted reaches exactly one end,
// and no id runs twice.
import assert from 'node:assert/strict'
import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { openDatabase } from '../src/db.ts'
import { newId } from '../src/ids.ts'
import { readLock } from '../src/postgres_lock.ts'
import { SimulatedAgent } from './support/fleet.ts'
import { admin, enrollmentSecret, startHub, type Device } from './support/hub.ts'
import { freePort, HubProcess } from './support/hub_process.ts'
import { createDatabase } from './support/postgres.ts'
import { until } from './support/until.ts'
import { removeFolder } from './support/folders.ts'

const agentCount = 1000
const commandCount = 5000

const env = {
  ADMIN_EMAIL: admin.email,
  ADMIN_PASSWORD: admin.password,
  AGENT_ENROLLMENT_SECRET: enrollmentSecret,
  JWT_SECRET: 'a test secret of more than 32 bytes',
  SHARDS: '2',
  LIMIT_API: '0',
  LIMIT_ENROLL: '0',
  LIMIT_CONNECT: '0',
  LIMIT_ACCEPT: '0',
  LIMIT_LOGIN: '0',
}

/** The operator's and the fleet's side of one trial. */
class Trial {
  readonly accepted = new Set<string>()
  agents: SimulatedAgent[] = []
  devices: Device[] = []
  private token = ''
  readonly origin: string

  constructor(origin: string) {
    this.origin = origin
  }

  async begin(): Promise<void> {
    const login = await this.ask('/auth/login', { email: admin.email, password: admin.password })
    this.token = ((await login.json()) as { accessToken: string }).accessToken
    await inParallel(agentCount, 32, async (n) => {
      const facts = { enrollmentSecret, hostname: `host-${n}`, os: 'linux', arch: 'amd64' }
      const answer = await this.ask('/agents/enroll', facts)
      this.devices.push((await answer.json()) as Device)
    })
    this.agents = this.devices.map((device) => new SimulatedAgent(device, this.origin))
    await until('all agents to be online', () => this.agents.every(({ online }) => online), 60_000)
  }

  /** Sends all commands, five per device, each until it is accepted: lost answers are asked again. */
  async command(): Promise<void> {
    await inParallel(commandCount, 32, async (n) => {
      const device = this.devices[n % this.devices.length] as Device
      const key = newId()
      for (;;) {
        const body = { action: 'run_command', payload: { command: `echo ${n}` } }
        const headers = { 'idempotency-key': key }
        const path = `/devices/${device.deviceId}/commands`
        const answer = await this.ask(path, body, headers).catch(() => undefined)
        const text = await answer?.text().catch(() => undefined)
        if (answer?.status === 202 && text !== undefined) {
          this.accepted.add((JSON.parse(text) as { id: string }).id)
          return
        }
        assert.ok(!answer || answer.status === 503, `${answer?.status}: ${text}`)
        await sleep(50 + Math.random() * 200)
      }
    })
  }

  /** Waits for the ends, then counts them where they were committed. */
  async judge(databaseUrl: string): Promise<void> {
    const db = openDatabase({ url: databaseUrl, name: 'judge', connections: 1 })
    try {
      assert.equal(this.accepted.size, commandCount)
      const ids = [...this.accepted]
      await until(
        'every command to end',
        async () => {
          const [row] = await db.query<{ open: string }>(
            'select count(*) as open from commands where id = any($1::uuid[]) and completed_at is null',
            [ids],
          )
          return row?.open === '0'
        },
        120_000,
      )
      const ends = await db.query<{ id: string; ends: string }>(
        `select data ->> 'commandId' as id, count(*) as ends from events
        where type in ('command.completed', 'command.failed', 'command.timeout',
          'command.expired', 'command.cancelled')
        group by 1`,
      )
      const endsById = new Map(ends.map((row) => [row.id, Number(row.ends)]))
      for (const id of ids) assert.equal(endsById.get(id), 1, `${id} has not exactly one end`)
      const [all] = await db.query<{ n: string }>('select count(*) as n from commands')
      assert.equal(Number(all?.n), commandCount, 'a retry made a second command')
      for (const agent of this.agents) {
        for (const [id, runs] of agent.runs) assert.equal(runs, 1, `${id} ran ${runs} times`)
      }
      const ran = this.agents.reduce((sum, agent) => sum + agent.runs.size, 0)
      assert.equal(ran, commandCount, 'a command never ran')
    } finally {
      await db.close()
    }
  }

  end(): void {
    for (const agent of this.agents) agent.stop()
  }

  private ask(path: string, body: unknown, headers: Record<string, string> = {}) {
    return fetch(`${this.origin}/api/v1${path}`, {
      method: 'POST',
      headers: {
        'content-type': 'application/json',
        ...(this.token ? { authorization: `Bearer ${this.token}` } : {}),
        ...headers,
      },
      body: JSON.stringify(body),
    })
  }
}

async function inParallel(count: number, width: number, work: (n: number) => Promise<void>) {
  let next = 0
  await Promise.all(
    Array.from({ length: width }, async () => {
      while (next < count) await work(next++)
    }),
  )
}

/** Does `harm` when about a fifth, two fifths, … of the commands are accepted. */
async function during(
  trial: Trial,
  times: number,
  harm: () => Promise<void> | void,
): Promise<void> {
  const commands = trial.command()
  for (let n = 1; n <= times; n++) {
    const mark = (commandCount * n) / (times + 1)
    await until(`${mark} commands to be accepted`, () => trial.accepted.size >= mark, 120_000)
    await harm()
  }
  await commands
}

test('a shard thread is killed three times: no agent reconnects, nothing is lost or run twice', async (t) => {
  const hub = await startHub(env)
  const trial = new Trial(hub.origin)
  t.after(() => end(trial, () => hub.close()))
  await trial.begin()
  const { shards, metrics } = hub.hub.ctx
  let turn = 0
  await during(trial, 3, async () => {
    const thread = shards.threads()[turn++ % shards.count]
    await thread?.terminate()
  })
  await trial.judge(hub.hub.databaseUrl)
  const { values } = await metrics.shardRestarts.get()
  assert.equal(values[0]?.value, 3)
  assert.ok(trial.agents.every(({ online }) => online))
  const closes = await metrics.closes.get()
  assert.deepEqual(
    closes.values,
    [],
    `a socket was closed: ${trial.agents.flatMap(({ losses }) => losses).join()}`,
  )
})

test('PostgreSQL is killed twice: agents stay connected, 503 meanwhile, all resumes by itself', async (t) => {
  const dataDir = mkdtempSync(join(tmpdir(), 'muster-chaos-'))
  const hub = new HubProcess(await freePort(), { ...env, DATA_DIR: dataDir })
  const trial = new Trial(hub.origin)
  t.after(() =>
    end(trial, async () => {
      await hub.kill('SIGKILL')
      removeFolder(dataDir)
    }),
  )
  await hub.start()
  await trial.begin()
  const cluster = join(dataDir, 'postgres', 'cluster')
  await during(trial, 2, async () => {
    // While its file is being written it reads as 0, which is the process group of the tests themselves.
    const pid = await until('a postmaster', () => readLock(cluster)?.pid || undefined)
    process.kill(pid, 'SIGKILL')
  })
  assert.ok(
    trial.agents.every(({ online }) => online),
    'an agent lost its socket',
  )
  await trial.judge(databaseUrlOf(hub))
  trial.end()
  assert.equal(await hub.kill('SIGTERM'), 0)
})

test('the hub is killed twice with commands in flight: agents come back, nothing is lost or run twice', async (t) => {
  const database = await createDatabase()
  const dataDir = mkdtempSync(join(tmpdir(), 'muster-chaos-'))
  const hub = new HubProcess(await freePort(), {
    ...env,
    DATA_DIR: dataDir,
    DATABASE_URL: database.url,
  })
  const trial = new Trial(hub.origin)
  t.after(() =>
    end(trial, async () => {
      await hub.kill('SIGKILL')
      await database.drop()
      removeFolder(dataDir)
    }),
  )
  await hub.start()
  await trial.begin()
  await during(trial, 2, async () => {
    await hub.kill('SIGKILL')
    await hub.start()
  })
  await trial.judge(database.url)
  trial.end()
  assert.equal(await hub.kill('SIGTERM'), 0)
})

test('agents are killed mid-command, wave after wave: interrupted once, never run again', async (t) => {
  const hub = await startHub(env)
  const trial = new Trial(hub.origin)
  t.after(() => end(trial, () => hub.close()))
  await trial.begin()
  await during(trial, 4, () => {
    for (const agent of trial.agents) if (Math.random() < 0.5) agent.kill()
  })
  await trial.judge(hub.hub.databaseUrl)
})

/** Whatever happened: the fleet first, then its hub. */
async function end(trial: Trial, hub: () => Promise<void>): Promise<void> {
  trial.end()
  await hub()
}

/** Where the embedded PostgreSQL of a hub process listens, as it said at its start. */
function databaseUrlOf(hub: HubProcess): string {
  const url = /DATABASE_URL=([^\s)]+)/.exec(hub.output)?.[1]
  assert.ok(url, `the hub did not say where its database is: ${hub.output}`)
  return url
}
