// Terminals whose ends are on several hubs: the operator on one, the session on another, the agent on a third, with
// the real agent and a real shell, and Redis killed in the middle.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { connect, createServer, type Server, type Socket } from 'node:net'
import type { AddressInfo } from 'node:net'
import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, afterEach, before, beforeEach, describe, test } from 'node:test'
import { plainArray } from '../src/db.ts'
import { newId } from '../src/ids.ts'
import type { Sockets } from '../src/shards.ts'
import type { TerminalRoutes } from '../src/terminal_routes.ts'
import { FakeAgent } from './support/agent.ts'
import { removeFolder } from './support/folders.ts'
import { freePort, HubProcess } from './support/hub_process.ts'
import { metricsToken, startHub, type TestHub } from './support/hub.ts'
import { makeOrganization, signedIn } from './support/people.ts'
import { startAgentOf, type RunningAgent } from './support/real_agent.ts'
import { startRedis, withoutRedis, type TestRedis } from './support/redis.ts'
import { endAll, openSocket, openTicket, Operator } from './support/terminal.ts'
import { until } from './support/until.ts'

/** What stands in front of hubs: new connections go to the one it is told. */
class Switch {
  private readonly server: Server
  private readonly sockets = new Set<Socket>()
  private port = 0

  constructor() {
    this.server = createServer((socket) => {
      const other = connect(this.port, '127.0.0.1')
      for (const one of [socket, other]) {
        this.sockets.add(one)
        one.on('error', () => {})
        one.on('close', () => {
          this.sockets.delete(one)
          socket.destroy()
          other.destroy()
        })
      }
      socket.pipe(other).pipe(socket)
    })
  }

  async listen(): Promise<string> {
    this.server.listen(0, '127.0.0.1')
    await once(this.server, 'listening')
    return `http://127.0.0.1:${(this.server.address() as AddressInfo).port}`
  }

  /** Cuts what there is; what comes then goes to this port. */
  moveTo(port: number): void {
    this.port = port
    for (const socket of this.sockets) socket.destroy()
  }

  close(): void {
    this.server.close()
    for (const socket of this.sockets) socket.destroy()
  }
}

async function pidOf(operator: Operator): Promise<number> {
  operator.type('echo pid-$$\n')
  const pid = await until('its pid', () => /pid-(\d+)/.exec(operator.text)?.[1])
  return Number(pid)
}

function isAlive(pid: number): boolean {
  try {
    return process.kill(pid, 0)
  } catch {
    return false
  }
}

interface MovingAgent extends RunningAgent {
  moveTo(port: number): void
}

/** An agent that can be sent to another hub; at first it is at this one. */
async function movingAgent(hub: TestHub): Promise<MovingAgent> {
  const way = new Switch()
  way.moveTo(hub.hub.port)
  const agent = await startAgentOf(hub, { origin: await way.listen() })
  return {
    ...agent,
    moveTo: (port) => way.moveTo(port),
    async stop() {
      await agent.stop()
      way.close()
    },
  }
}

describe('terminals across hubs', { skip: withoutRedis }, () => {
  let redis: TestRedis
  let here: TestHub
  let home: TestHub
  let far: TestHub
  let agent: MovingAgent

  before(async () => {
    redis = await startRedis()
    home = await startHub({ REDIS_URL: redis.url })
    const env = { REDIS_URL: redis.url, DATABASE_URL: home.database.url }
    here = await startHub(env)
    far = await startHub(env)
    await reach('ok')
    agent = await movingAgent(home)
  })
  after(async () => {
    await agent.stop()
    for (const hub of [far, here, home]) await hub.close()
    await redis.close()
  })
  afterEach(async () => {
    await endAll()
    // Its pauses have grown with each move of the test: one that is new waits for a second at most.
    await claimedAnew(agent, () => agent.restart())
    await agentOn(home)
  })

  /** Does what makes a hub claim the agent again, and waits for that. */
  async function claimedAnew(who: MovingAgent, cause: () => unknown): Promise<void> {
    const epoch = async () => {
      const [found] = await home.hub.ctx.db.query<{ epoch: string }>(
        'select epoch::text as epoch from device_presence where device_id = $1',
        [who.deviceId],
      )
      return found?.epoch
    }
    const earlier = await epoch()
    await cause()
    await until('the claim', async () => (await epoch()) !== earlier)
  }

  const reach = (word: 'ok' | 'down') =>
    until(`Redis to be ${word}`, async () => {
      const answers = await Promise.all(
        [here, home, far].map((hub) => hub.get('{origin}/health/ready', { token: undefined })),
      )
      return answers.every(({ body }) => body.checks.redis === word)
    })

  async function agentOn(hub: TestHub, who = agent): Promise<void> {
    const there = async () => {
      const [row] = await hub.hub.ctx.db.query<{ nodeId: string; status: string }>(
        'select node_id as "nodeId", status from device_presence where device_id = $1',
        [who.deviceId],
      )
      return row?.nodeId === hub.hub.ctx.nodeId && row.status === 'online'
    }
    if (await there()) return
    who.moveTo(hub.hub.port)
    await until('the agent to be on another hub', there)
  }

  const row = async (id: string) => {
    const { body } = await here.get(`/devices/${agent.deviceId}/terminals?limit=100`)
    return body.data.find((one: { id: string }) => one.id === id)
  }

  /** A count that the shell goes up to, slowly enough for something to happen meanwhile. */
  const counting =
    'stty -echo -onlcr; i=0; while [ $i -lt 300 ]; do i=$((i+1)); echo n$i; sleep 0.01; done; echo over\n'
  function assertCounted(text: string): void {
    const numbers = [...text.matchAll(/^n(\d+)$/gm)].map((match) => Number(match[1]))
    assert.deepEqual(
      numbers,
      Array.from({ length: 300 }, (_, n) => n + 1),
    )
  }

  test('typed on one hub, run on another: shown byte by byte, recorded, ended', async () => {
    const operator = await Operator.open(here, agent.deviceId)
    operator.type('stty -echo -onlcr; seq 1 60000; echo $((6*7))-done\n')
    await operator.shows('42-done\n')
    const numbers = Array.from({ length: 60_000 }, (_, n) => `${n + 1}\n`).join('')
    assert.ok(operator.text.includes(numbers))
    operator.client.resize({ cols: 100, rows: 30 })
    operator.type('stty size\n')
    await operator.shows('30 100')
    operator.type('exit 3\n')
    await until('the exit', () => operator.exit)
    assert.equal(operator.exit?.exitCode, 3)
    operator.client.end()
    const ended = await until('its row', async () => {
      const found = await row(operator.id)
      return found?.endedAt !== null && found
    })
    assert.deepEqual([ended.endReason, ended.exitCode], ['exited', 3])
    const recording = await far.get(`/terminals/${operator.id}/recording`)
    assert.match(recording.text, /42-done/)
  })

  test('an operator comes back through any hub', async () => {
    const operator = await Operator.open(here, agent.deviceId)
    operator.type(counting)
    await operator.shows('n20\n')
    operator.drop()
    await operator.reconnect()
    await operator.shows('n100\n')
    // A ticket of one hub is good on every other.
    operator.drop()
    const { body } = await far.post(`/terminals/${operator.id}/tickets`)
    const websocketUrl = body.websocketUrl.replace(far.origin.slice(4), home.origin.slice(4))
    const socket = await openSocket({ websocketUrl, ticket: body.ticket })
    Reflect.get(operator, 'join').call(operator, socket)
    await operator.shows('over\n')
    assertCounted(operator.text)
  })

  test('an agent that comes to other hubs goes on, and nothing of it is lost or doubled', async () => {
    const operator = await Operator.open(here, agent.deviceId)
    operator.type(counting)
    await operator.shows('n20\n')
    await agentOn(far)
    await operator.shows('n60\n')
    await agentOn(here)
    await operator.shows('n100\n')
    await agentOn(home)
    await operator.shows('over\n')
    assertCounted(operator.text)
    operator.type('exit\n')
    await until('the exit', () => operator.exit)
  })

  test('three hubs: the operator on one, the session on another, the agent on a third', async () => {
    const operator = await Operator.open(here, agent.deviceId)
    await agentOn(far)
    operator.type('echo $((6*7))\n')
    await operator.shows('42')
    const { text } = await home.get('{origin}/metrics', { token: metricsToken })
    assert.match(text, /^muster_terminals 1$/m)
    for (const hub of [here, far]) {
      const other = await hub.get('{origin}/metrics', { token: metricsToken })
      assert.match(other.text, /^muster_terminals 0$/m)
    }
    // The close finds its way to the agent.
    operator.client.end()
    await until('the end', async () => (await row(operator.id))?.endReason === 'closed')
    await until('the shell to end', () => operator.over !== undefined)
  })

  test('a claim anew of the open socket keeps the way to sessions elsewhere', async () => {
    const other = await movingAgent(home)
    const operator = await Operator.open(here, other.deviceId)
    await agentOn(far, other)
    operator.type('echo $((6*7))\n')
    await operator.shows('42')
    await claimedAnew(other, () => far.hub.ctx.shards.broadcast({ type: 'reclaim' }))
    operator.type('echo $((7*7))\n')
    await operator.shows('49')
    operator.drop()
    await operator.reconnect()
    operator.type('echo $((8*8))\n')
    await operator.shows('64')
    await other.stop()
  })

  test('an agent that goes before its welcome leaves nothing behind', async () => {
    const { ctx } = far.hub
    const device = await far.enroll()
    const ways = () => [...(Reflect.get(ctx.relay, 'routes') as TerminalRoutes).nodes()]
    const sessions = [{ id: newId(), home: here.hub.ctx.nodeId }]
    assert.deepEqual(ways(), [])
    // A claim that waits: the socket is open and not welcomed.
    const locked = Promise.withResolvers<void>()
    const held = Promise.withResolvers<void>()
    const holding = ctx.db.transaction(async (tx) => {
      await tx.query('select from device_presence where device_id = $1 for update', [
        device.deviceId,
      ])
      locked.resolve()
      await held.promise
    })
    await locked.promise
    const early = await FakeAgent.open(device, far.origin)
    const sockets = Reflect.get(ctx.shards, 'sockets') as Sockets
    const conn = await until(
      'its socket',
      () =>
        [...sockets.openOf(ctx.shards.of(device.deviceId))].find(
          ({ deviceId }) => deviceId === device.deviceId,
        )?.conn,
    )
    ctx.relay.learn(device.deviceId, conn, sessions)
    assert.deepEqual(ways(), [here.hub.ctx.nodeId])
    early.socket.terminate()
    await until('its ways to be gone', () => ways().length === 0)
    // What is told of it afterwards comes too late.
    ctx.relay.learn(device.deviceId, conn, sessions)
    assert.deepEqual(ways(), [])
    held.resolve()
    await holding
  })

  test('a terminal of another user opens nothing, through whichever hub', async () => {
    const ticket = await openTicket(here, agent.deviceId)
    const orgId = await makeOrganization(home)
    const stranger = await signedIn(home, 'technician', { orgId })
    const other = await signedIn(home, 'platform_admin')
    const ask = (token: string) => far.post(`/terminals/${ticket.id}/tickets`, {}, { token })
    assert.equal((await ask(stranger.token)).status, 404)
    assert.equal((await ask(other.token)).body.error.code, 'FORBIDDEN')
    const socket = await openSocket(ticket)
    // Good once, wherever.
    await assert.rejects(openSocket(ticket), /refused with 401/)
    const guess = { websocketUrl: ticket.websocketUrl, ticket: 'x'.repeat(43) }
    await assert.rejects(openSocket(guess), /refused with 401/)
    socket.terminate()
  })

  test('who signs out loses the terminal, and the socket on the other hub', async () => {
    const person = await signedIn(home, 'platform_admin')
    const operator = await Operator.open(here, agent.deviceId, person.token)
    assert.equal((await far.post('/auth/logout', {}, { token: person.token })).status, 200)
    assert.match(await operator.ended(), /may not use/)
    await until('the socket to close', () => operator.closed)
  })

  test('Redis dies: sockets break, new ones are refused with the reason, and all goes on when it is back', async () => {
    const operator = await Operator.open(here, agent.deviceId)
    operator.type(counting)
    await operator.shows('n20\n')
    await redis.kill()
    await until('the socket to break', () => operator.closed)
    assert.equal(operator.closed?.code, 1012)
    await reach('down')
    const refused = await here.post(`/devices/${agent.deviceId}/terminals`, { cols: 80, rows: 24 })
    assert.equal(refused.status, 503)
    assert.match(refused.body.error.message, /REDIS_URL/)
    // Where the device is, terminals need no Redis.
    const local = await Operator.open(home, agent.deviceId)
    local.type('echo $((6*7))\n')
    await local.shows('42')
    await redis.start()
    await reach('ok')
    await operator.reconnect()
    await operator.shows('over\n')
    assertCounted(operator.text)
  })

  test('what ended while the agent was away ends there when it is back', async () => {
    const other = await movingAgent(home)
    const operator = await Operator.open(home, other.deviceId)
    const shell = await pidOf(operator)
    other.moveTo(await freePort())
    await until('the device to be offline', async () => {
      const { body } = await home.get(`/devices/${other.deviceId}`)
      return body.status === 'offline'
    })
    operator.client.end()
    await operator.ended()
    assert.ok(isAlive(shell))
    await agentOn(far, other)
    // Long before the agent would give it up by itself.
    await until('the shell to end', () => !isAlive(shell))
    await other.stop()
  })

  test('a hub that was taken for dead ends what others have ended', async () => {
    const operator = await Operator.open(here, agent.deviceId)
    const shell = await pidOf(operator)
    // As the sweep of another hub does it, when this one did not renew its lease.
    await far.hub.ctx.db.query(
      `update terminals set ended_at = now(), end_reason = 'interrupted' where id = $1`,
      [operator.id.slice('term-'.length)],
    )
    far.hub.ctx.relay.interrupted()
    assert.match(await operator.ended(), /failed.*open a new terminal/)
    await until('the shell to end', () => !isAlive(shell))
  })

  describe('whose hub is killed', () => {
    const folder = mkdtempSync(join(tmpdir(), 'muster-killed-'))
    let killed: HubProcess
    let other: MovingAgent
    beforeEach(async () => {
      const env = { REDIS_URL: redis.url, DATABASE_URL: home.database.url, DATA_DIR: folder }
      killed = new HubProcess(await freePort(), { ...home.env, ...env })
      await killed.start()
      await until('Redis to reach it', async () => {
        const answer = await fetch(`${killed.origin}/health/ready`)
        const { checks } = (await answer.json()) as { checks: { redis: string } }
        return checks.redis === 'ok'
      })
      other = await movingAgent(home)
      other.moveTo(killed.port)
      await until('the agent to be there', async () => {
        const [found] = await home.hub.ctx.db.query<{ there: boolean }>(
          `select status = 'online' and node_id <> all($2::uuid[]) as there
           from device_presence where device_id = $1`,
          [other.deviceId, plainArray([here, home, far].map(({ hub }) => hub.ctx.nodeId))],
        )
        return found?.there
      })
    })
    afterEach(async () => {
      await killed.kill('SIGKILL')
      await other.stop()
    })
    after(() => removeFolder(folder))

    const ticket = (id: string) => here.post(`/terminals/${id}/tickets`)
    /** Of the terminals that a killed hub leaves. */
    const interrupted = /the hub that it was on failed.*open a new terminal/

    test('with the agent: a new terminal finds room at once, on the hub where the agent is', async () => {
      const earlier: Operator[] = []
      for (let n = 0; n < 3; n++) earlier.push(await Operator.open(here, other.deviceId))
      const shells = await Promise.all(earlier.map(pidOf))
      await killed.kill('SIGKILL')
      await agentOn(far, other)
      // As long as no sweep can end them: its lease is not over, for all that is known.
      const locked = Promise.withResolvers<void>()
      const held = Promise.withResolvers<void>()
      const holding = home.hub.ctx.db.transaction(async (tx) => {
        const open = await tx.query(
          'select from terminals where device_id = $1 and ended_at is null for update',
          [other.deviceId],
        )
        assert.equal(open.length, 3)
        locked.resolve()
        await held.promise
      })
      await Promise.race([locked.promise, holding])
      const operator = await Operator.open(here, other.deviceId).finally(() => held.resolve())
      await holding
      operator.type('echo $((6*7))\n')
      await operator.shows('42')
      await until('the shells to end', () => !shells.some(isAlive))
      for (const { id } of earlier) {
        const answer = await until('its end', async () => {
          const now = await ticket(id)
          return now.status !== 503 && now
        })
        assert.equal(answer.body.error.code, 'CONFLICT')
        assert.match(answer.body.error.message, interrupted)
      }
      operator.type('echo $((7*7))\n')
      await operator.shows('49')
    })

    test('between its ends: the operator hears why, the shell ends, by itself', async () => {
      const operator = await Operator.open(here, other.deviceId)
      const shell = await pidOf(operator)
      await agentOn(far, other)
      operator.type('echo $((6*7))\n')
      await operator.shows('42')
      await killed.kill('SIGKILL')
      const { code, reason } = await until('the socket to close', () => operator.closed)
      assert.equal(code, 1012)
      assert.match(reason, /does not answer; connect again/)
      const early = await ticket(operator.id)
      if (early.status === 503) assert.match(early.body.error.message, /within half a minute/)
      await until('the shell to end', () => !isAlive(shell))
      assert.match((await ticket(operator.id)).body.error.message, interrupted)
    })
  })

  test('the hub of the session stops: its operators elsewhere are told', async () => {
    const leaving = await startHub({ REDIS_URL: redis.url, DATABASE_URL: home.database.url })
    await until('Redis', async () => {
      const { body } = await leaving.get('{origin}/health/ready', { token: undefined })
      return body.checks.redis === 'ok'
    })
    const other = await startAgentOf(leaving)
    const operator = await Operator.open(here, other.deviceId)
    operator.type('echo $((6*7))\n')
    await operator.shows('42')
    await leaving.close()
    assert.equal(await operator.ended(), 'the hub restarts')
    const ended = await until('its row', async () => {
      const { body } = await here.get(`/devices/${other.deviceId}/terminals`)
      return body.data[0].endedAt !== null && body.data[0]
    })
    assert.equal(ended.endReason, 'hub_stopped')
    await other.stop()
  })
})
