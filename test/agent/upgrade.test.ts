// The parts of an upgrade by value and on a real disk: whom the agent believes, what it takes, what it makes of a
// trial, and that a download goes on where it broke.

import assert from 'node:assert/strict'
import { createHash, generateKeyPairSync, randomBytes } from 'node:crypto'
import type { KeyObject } from 'node:crypto'
import { existsSync, mkdirSync, readFileSync, readdirSync, statSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { describe, test } from 'node:test'
import fc from 'fast-check'
import { beatMs, quietMsMax, trialMs } from '../../agent/upgrade/bounds.ts'
import { download } from '../../agent/upgrade/download.ts'
import { chooseFile, parseOffer } from '../../agent/upgrade/offer.ts'
import { discard, discardParts, install, isSettled, placesOf } from '../../agent/upgrade/places.ts'
import { UpgradeError } from '../../agent/upgrade/reasons.ts'
import { outcomeOf, readRecord, writeRecord } from '../../agent/upgrade/record.ts'
import type { UpgradeRecord } from '../../agent/upgrade/record.ts'
import { keepTrust, learn, readTrust } from '../../agent/upgrade/trust.ts'
import type { Trust } from '../../agent/upgrade/trust.ts'
import { judge, watchTrial } from '../../agent/upgrade/watch.ts'
import { stateAt } from '../../agent/state.ts'
import {
  agentFileName,
  keyIdOf,
  publicKeyOf,
  signFile,
  signKeyList,
  signManifest,
} from '../../src/release_manifest.ts'
import { enrollAt, makeFolder, startAgent } from './support/agent.ts'
import { startFakeHub } from './support/fake_hub.ts'

const record: UpgradeRecord = {
  commandId: 'c',
  from: '1.0.0',
  to: '2.0.0',
  phase: 'trial',
  endsByMs: 1,
  process: null,
  reason: null,
  error: null,
}

const own = { os: 'linux', arch: 'amd64' } as const
const [first, second] = [makeKey(), makeKey()]

function makeKey(): { key: KeyObject; open: string } {
  const key = generateKeyPairSync('ed25519').privateKey
  return { key, open: publicKeyOf(key) }
}

function release(version: string, { key, open } = first, minimumVersion: string | null = null) {
  const facts = { ...own, size: 10, sha256: createHash('sha256').update(version).digest('hex') }
  const name = agentFileName(version, own)
  const file = { name, ...facts, signature: signFile(version, facts, key), zst: null }
  const created = '2026-01-01T00:00:00.000Z'
  return signManifest(
    { version, created, minimumVersion, keyId: keyIdOf(open), files: [file] },
    key,
  )
}

function trusting(...keys: string[]): Trust {
  return { pins: keys, keys, keysCreated: null, minimumVersion: null }
}

const list = (keys: string[], signers: KeyObject[], created: string) =>
  signKeyList({ created, keys }, signers)

function reasonOf(run: () => unknown): string {
  try {
    run()
  } catch (error) {
    if (error instanceof UpgradeError) return error.reason
    throw error
  }
  return 'none'
}

describe('trust', () => {
  test('a list of keys counts when a key in force signed it and it is newer', () => {
    const pinned = trusting(first.open)
    const [older, newer] = ['2026-02-01T00:00:00.000Z', '2026-03-01T00:00:00.000Z']
    const moved = learn(pinned, list([second.open], [first.key], newer), [])
    assert.deepEqual(moved.keys, [second.open])
    // Signed by the one it names alone, by a stranger, or older than the one in force: as if not there.
    assert.deepEqual(learn(pinned, list([second.open], [second.key], newer), []), pinned)
    assert.deepEqual(learn(moved, list([first.open], [second.key], older), []), moved)
    assert.deepEqual(learn(moved, list([first.open], [first.key], newer), []), moved)
    // A revoked key brings nobody back.
    const later = '2026-04-01T00:00:00.000Z'
    assert.deepEqual(learn(moved, list([first.open], [first.key], later), []), moved)
  })

  test('the lowest version only rises, and only by manifests of keys in force', () => {
    let trust = learn(trusting(first.open), null, [release('3.0.0', first, '2.0.0')])
    assert.equal(trust.minimumVersion, '2.0.0')
    trust = learn(trust, null, [release('2.5.0', first, '1.0.0'), release('9.0.0', first)])
    assert.equal(trust.minimumVersion, '2.0.0')
    trust = learn(trust, null, [release('8.0.0', second, '8.0.0')])
    assert.equal(trust.minimumVersion, '2.0.0')
  })

  test('what was learned is kept; under other pins a list counts no more, the lowest version does', () => {
    using folder = makeFolder()
    const state = stateAt(folder.path)
    const identity = (releaseKeys: unknown[]) => ({
      deviceId: 'd',
      orgId: 'o',
      siteId: 's',
      hubUrl: 'http://hub',
      websocketUrl: 'ws://hub',
      heartbeatIntervalSeconds: 30,
      enrolledAt: '',
      releaseKeys,
    })
    const enrolled = readTrust(state, identity([first.open, 'nonsense', 7]))
    assert.deepEqual(enrolled, trusting(first.open))
    const rotation = list([second.open], [first.key], '2026-02-01T00:00:00.000Z')
    const learned = learn(enrolled, rotation, [release('3.0.0', second, '2.0.0')])
    keepTrust(state, learned)
    assert.deepEqual(readTrust(state, identity([first.open])), learned)
    const other = makeKey().open
    const anew = readTrust(state, identity([other]))
    assert.deepEqual(anew, { ...trusting(other), minimumVersion: '2.0.0' })
  })
})

describe('an offer', () => {
  const offer = (...manifests: unknown[]) => parseOffer({ data: manifests, keyList: null })

  test('gives the file of this platform, whatever else a newer hub says of it', () => {
    const told = { ...release('2.0.0'), offered: true, colour: 'blue' }
    const file = chooseFile('2.0.0', own, offer(told), trusting(second.open, first.open))
    assert.equal(file.name, 'muster-agent_2.0.0_linux_amd64')
  })

  test('is refused with the reason that it is', () => {
    const good = release('2.0.0', first, '1.5.0')
    const cases: [string, string, unknown[], Trust][] = [
      ['no_trusted_key', '2.0.0', [good], trusting()],
      ['not_offered', '2.0.1', [good], trusting(first.open)],
      ['not_offered', '2.0.0', [], trusting(first.open)],
      ['bad_signature', '2.0.0', [good], trusting(second.open)],
      ['bad_signature', '2.0.0', [{ ...good, minimumVersion: null }], trusting(first.open)],
      [
        'bad_signature',
        '2.0.0',
        [{ ...good, created: '2027-01-01T00:00:00.000Z' }],
        trusting(first.open),
      ],
      [
        'below_minimum',
        '1.0.0',
        [release('1.0.0')],
        { ...trusting(first.open), minimumVersion: '1.0.1' },
      ],
      ['none', '1.0.1', [release('1.0.1')], { ...trusting(first.open), minimumVersion: '1.0.1' }],
    ]
    for (const [reason, version, manifests, trust] of cases) {
      const found = reasonOf(() => chooseFile(version, own, offer(...manifests), trust))
      assert.equal(found, reason, `${version} of ${JSON.stringify(manifests)}`)
    }
    const arm = { os: 'linux', arch: 'arm64' } as const
    const none = reasonOf(() => chooseFile('2.0.0', arm, offer(good), trusting(first.open)))
    assert.equal(none, 'not_offered')
  })

  test('of any nonsense is no offer, and never an exception', () => {
    fc.assert(
      fc.property(fc.anything(), fc.anything(), (data, keyList) => {
        for (const body of [data, { data, keyList }, { data: [data], keyList }]) {
          const { manifests, keyList: keys } = parseOffer(body)
          assert.deepEqual([manifests, keys], [[], null])
        }
      }),
    )
  })
})

describe('a trial', () => {
  const bounds = { trialMs: 300_000, quietMs: 60_000 }
  const sight = { committed: false, end: null, elapsedMs: 0, quietMs: 0, link: 'no way' }
  const reason = (more: Partial<Parameters<typeof judge>[0]>) => {
    const verdict = judge({ ...sight, ...more }, bounds)
    return typeof verdict === 'string' ? verdict : verdict.reason
  }

  test('is judged by what is seen: a commit stands above all, an end above silence', () => {
    const end = { code: 1, signal: null }
    assert.equal(reason({}), 'wait')
    assert.equal(reason({ elapsedMs: 299_999, quietMs: 59_999 }), 'wait')
    assert.equal(reason({ quietMs: 60_000 }), 'hung')
    assert.equal(reason({ elapsedMs: 300_000 }), 'hub_unreachable')
    assert.equal(reason({ end }), 'crashed')
    assert.equal(reason({ end: { code: 0, signal: null } }), 'crashed')
    assert.equal(reason({ end, quietMs: 60_000, elapsedMs: 300_000 }), 'crashed')
    assert.equal(reason({ committed: true, end, quietMs: 1e9, elapsedMs: 1e9 }), 'committed')
  })

  test('that went on before anybody looked has passed: its record is committed, gone, or the next one', async () => {
    const never = new AbortController().signal
    const open: UpgradeRecord = { ...record, endsByMs: Date.now() + 600_000 }
    for (const later of [{ phase: 'committed' as const }, { commandId: 'the next' }, null]) {
      using folder = makeFolder()
      const state = stateAt(folder.path)
      if (later) writeRecord(state, { ...open, ...later })
      // It runs on, or has ended since: both are none of the trial's business.
      for (const end of [null, { code: 76, signal: null }]) {
        assert.equal(await watchTrial(state, () => end, open, never), 'committed')
      }
    }
    using folder = makeFolder()
    const state = stateAt(folder.path)
    writeRecord(state, open)
    const crashed = await watchTrial(state, () => ({ code: 1, signal: null }), open, never)
    assert.equal(typeof crashed === 'object' && crashed?.reason, 'crashed')
  })

  test('takes 5 minutes, or less where the environment says so, and beats 60 times', () => {
    assert.equal(trialMs({}), 300_000)
    assert.equal(trialMs({ MUSTER_AGENT_TRIAL_SECONDS: '10' }), 10_000)
    for (const odd of ['0', '-3', 'x', '', '1e9', 'Infinity']) {
      assert.equal(trialMs({ MUSTER_AGENT_TRIAL_SECONDS: odd }), 300_000)
    }
    assert.equal(trialMs({ MUSTER_AGENT_TRIAL_SECONDS: '0.001' }), 5000)
    assert.deepEqual([beatMs(), quietMsMax()], [5000, 60_000])
  })
})

describe('on disk', () => {
  test('a record comes back as it was, with what a newer version adds, and says the end', () => {
    using folder = makeFolder()
    const state = stateAt(folder.path)
    assert.equal(readRecord(state), null)
    writeRecord(state, { ...record, later: 'addition' } as UpgradeRecord)
    assert.equal(readRecord(state)?.commandId, 'c')
    assert.equal(outcomeOf(record), null)
    assert.deepEqual(outcomeOf({ ...record, phase: 'committed' }), {
      status: 'completed',
      data: { from: '1.0.0', to: '2.0.0' },
    })
    const failed = { ...record, phase: 'failed', reason: 'hung', error: 'it hung' } as const
    assert.deepEqual(outcomeOf(failed), {
      status: 'failed',
      error: 'it hung; version 1.0.0 is back',
      data: { reason: 'hung', from: '1.0.0', to: '2.0.0', phase: 'trial' },
    })
  })

  test('a program is replaced at once, the one before is kept, and twice is as good as once', () => {
    using folder = makeFolder()
    const places = placesOf(join(folder.path, 'agent'))
    const write = (path: string, text: string) => writeFileSync(path, text)
    write(places.program, 'one')
    write(places.next, 'two')
    assert.ok(!isSettled(places))
    install(places)
    install(places)
    assert.deepEqual(
      [readFileSync(places.program, 'utf8'), readFileSync(places.old, 'utf8')],
      ['two', 'one'],
    )
    write(places.next, 'three')
    install(places)
    assert.equal(readFileSync(places.old, 'utf8'), 'two')
    write(places.next, 'four')
    discard(places)
    assert.ok(isSettled(places))
    assert.equal(readFileSync(places.program, 'utf8'), 'three')
  })

  test('only the download that goes on stays', () => {
    using folder = makeFolder()
    const places = placesOf(join(folder.path, 'agent'))
    for (const hash of ['a', 'b']) writeFileSync(places.part(hash.repeat(64)), '')
    mkdirSync(join(folder.path, 'other'))
    discardParts(places, 'b'.repeat(64))
    assert.deepEqual(readdirSync(folder.path).toSorted(), [
      `.agent.part-${'b'.repeat(16)}`,
      'other',
    ])
  })
})

describe('a download', () => {
  const bytes = randomBytes(300_000)

  async function server(answer: (request: IncomingMessage, response: ServerResponse) => void) {
    const http = createServer(answer)
    await new Promise<void>((resolve) => http.listen(0, '127.0.0.1', resolve))
    return {
      url: `http://127.0.0.1:${(http.address() as AddressInfo).port}/`,
      async [Symbol.asyncDispose]() {
        http.closeAllConnections()
        await new Promise((resolve) => http.close(resolve))
      },
    }
  }

  const wanted = (url: string, folder: string, signal = new AbortController().signal) => ({
    url,
    part: join(folder, 'part'),
    size: bytes.length,
    signal,
  })

  test('that breaks twice goes on where it broke', async () => {
    using folder = makeFolder()
    const starts: number[] = []
    await using hub = await server((request, response) => {
      const start = Number(/bytes=(\d+)-/.exec(request.headers.range ?? '')?.[1] ?? 0)
      starts.push(start)
      response.writeHead(start ? 206 : 200)
      if (starts.length < 3)
        response.write(bytes.subarray(start, start + 100_000), () => response.destroy())
      else response.end(bytes.subarray(start))
    })
    const job = wanted(hub.url, folder.path)
    await download(job)
    assert.ok(readFileSync(job.part).equals(bytes))
    assert.equal(starts.length, 3)
    assert.ok((starts[1] ?? 0) > 0 && (starts[2] ?? 0) > (starts[1] ?? 0), starts.join())
    // What is whole is not asked for again.
    await download(job)
    assert.equal(starts.length, 3)
  })

  test('from a hub that knows no ranges begins anew', async () => {
    using folder = makeFolder()
    await using hub = await server((_request, response) => response.end(bytes))
    const job = wanted(hub.url, folder.path)
    writeFileSync(job.part, 'what an earlier try left')
    await download(job)
    assert.ok(readFileSync(job.part).equals(bytes))
  })

  test('that is longer than its release is cut off, and one that is refused says how', async () => {
    using folder = makeFolder()
    await using long = await server((_request, response) => {
      response.writeHead(200)
      response.write(bytes)
      const more = setInterval(() => response.write(bytes), 1)
      response.on('close', () => clearInterval(more))
    })
    const reason = (expected: string) => (error: UpgradeError) => error.reason === expected
    await assert.rejects(download(wanted(long.url, folder.path)), reason('bad_checksum'))
    assert.ok(statSync(join(folder.path, 'part')).size <= bytes.length)
    await using gone = await server((_request, response) => response.writeHead(404).end())
    using other = makeFolder()
    await assert.rejects(download(wanted(gone.url, other.path)), reason('download_failed'))
  })

  test('ends with its command', async () => {
    using folder = makeFolder()
    const control = new AbortController()
    await using silent = await server((_request, response) => {
      response.write('a')
      control.abort(new Error('cancelled'))
    })
    const job = wanted(silent.url, folder.path, control.signal)
    await assert.rejects(download(job), /cancelled|abort/i)
  })

  test('asks for room first', async () => {
    using folder = makeFolder()
    const job = { ...wanted('http://127.0.0.1:9/', folder.path), size: 2 ** 50 }
    await assert.rejects(download(job), (error: UpgradeError) => error.reason === 'disk_full')
    assert.ok(!existsSync(job.part))
  })
})

test('from a checkout it says that the checkout is to be updated', async () => {
  await using hub = await startFakeHub()
  using folder = makeFolder()
  await enrollAt(hub.url, folder.path)
  await using agent = startAgent(folder.path, ['--supervised'])
  await hub.welcomed()
  const result = await hub.run('u1', 'upgrade_agent', { version: '99.0.0' })
  assert.equal(result.status, 'failed')
  assert.equal((result.data as { reason: string }).reason, 'not_compiled')
  assert.match(String(result.error), /checkout/)
  const bad = await hub.run('u2', 'upgrade_agent', { version: '../../etc' })
  assert.match(String(bad.error), /version must be/)
  assert.ok(agent.pid > 0)
})
