// The journal on a real disk: batches, growth, and a disk that refuses.

import assert from 'node:assert/strict'
import { mkdirSync, readFileSync, renameSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { Journal } from '../../agent/journal.ts'
import { journalBytesMin } from '../../agent/limits.ts'
import type { Log } from '../../agent/log.ts'
import { makeFolder } from './support/agent.ts'
import { until } from './support/until.ts'

function collectLog() {
  const lines: string[] = []
  const add = (msg: string) => void lines.push(msg)
  const log: Log = { info: add, warn: add, error: add }
  return { lines, log }
}

function commandOf(id: string, text: string) {
  const fields = { action: 'run_command', payload: { text }, attempt: 1, timeoutSeconds: 9 }
  return { type: 'command', command: { type: 'command', id, ...fields }, at: 1 } as const
}

async function writeLife(journal: Journal, id: string, text: string): Promise<void> {
  const result = { type: 'result', id, status: 'completed' } as const
  await Promise.all([
    journal.append(commandOf(id, text)),
    journal.append({ type: 'result', result, at: Date.now() }),
    journal.append({ type: 'acked', id, at: Date.now() }),
  ])
}

test('what was appended is there after opening again, in private', async () => {
  using folder = makeFolder()
  const path = join(folder.path, 'journal')
  const { log } = collectLog()
  const first = await Journal.open(path, log)
  await Promise.all(['a', 'b', 'c'].map((id) => first.append(commandOf(id, 'x'))))
  await first.append({ type: 'started', id: 'b', at: 2 })
  assert.equal(statSync(path).mode & 0o777, 0o600)
  await first.close()
  const second = await Journal.open(path, log)
  const phases = [...second.ledger].map(([id, { phase }]) => `${id} ${phase}`)
  assert.deepEqual(phases, ['a waiting', 'b running', 'c waiting'])
  await second.close()
})

test('a journal that grew is rewritten and stays bounded', async () => {
  using folder = makeFolder()
  const path = join(folder.path, 'journal')
  const journal = await Journal.open(path, collectLog().log)
  const text = 'x'.repeat(256 * 1024)
  for (let at = 0; at < 40; at++) await writeLife(journal, `id${at}`, text)
  assert.ok(statSync(path).size <= journalBytesMin + 2 * text.length)
  assert.equal(journal.ledger.size, 40)
  await journal.close()
  const again = await Journal.open(path, collectLog().log)
  assert.ok([...again.ledger.values()].every(({ phase }) => phase === 'done'))
  assert.ok(statSync(path).size < 10_000)
  await again.close()
})

test('a secret that ends while the journal is being rewritten leaves the disk too', async () => {
  using folder = makeFolder()
  const path = join(folder.path, 'journal')
  const journal = await Journal.open(path, collectLog().log)
  await journal.append(commandOf('a', 'swordfish'))
  journal.rewriteSoon() // reads the ledger at once: this one still holds the command
  const end = { type: 'result', result: { type: 'result', id: 'a', status: 'completed' } } as const
  const ended = journal.append({ ...end, at: Date.now() })
  journal.rewriteSoon()
  await ended
  await journal.close()
  assert.doesNotMatch(readFileSync(path, 'utf8'), /swordfish/)
  assert.equal(journal.ledger.get('a')?.phase, 'ended')
})

test('a disk that refuses holds writers back, and takes everything when it is well', async () => {
  using folder = makeFolder()
  const home = join(folder.path, 'disk')
  mkdirSync(home)
  const { lines, log } = collectLog()
  const journal = await Journal.open(join(home, 'journal'), log)
  renameSync(home, join(folder.path, 'away'))
  journal.rewriteSoon()
  let written = false
  const appended = journal.append(commandOf('a', 'held back')).then(() => (written = true))
  await until(() => lines.includes('journal cannot be written, commands wait'), 'the complaint')
  assert.equal(written, false)
  renameSync(join(folder.path, 'away'), home)
  await appended
  assert.match(readFileSync(join(home, 'journal'), 'utf8'), /held back/)
  await journal.close()
})
