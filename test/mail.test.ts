// The mailer by itself: tries again, gives up, stays bounded, and never tells a secret.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { pino } from 'pino'
import { readConfig } from '../src/config.ts'
import { openDatabase, type Database } from '../src/db.ts'
import { newId } from '../src/ids.ts'
import { limits } from '../src/limits.ts'
import { createLog } from '../src/log.ts'
import { mailer, type Mailer } from '../src/mail.ts'
import { createMetrics } from '../src/metrics.ts'
import { createDatabase, type TestDatabase } from './support/postgres.ts'
import { startSmtp, type TestSmtp } from './support/smtp.ts'
import { until } from './support/until.ts'

let database: TestDatabase
let db: Database

before(async () => {
  database = await createDatabase()
  db = openDatabase({ url: database.url, name: 'test', connections: 2 })
})
after(async () => {
  await db.close()
  await database.drop()
})

/** What a link carries, in every mail of these tests. */
const token = `min_${'a'.repeat(43)}`

function open(
  smtpUrl: string,
  retrySeconds: readonly number[],
  log = createLog('silent', 'test'),
): Mailer {
  const config = { smtpUrl, publicOrigin: 'https://muster.example.com' }
  const made = mailer({ config, db, log, metrics: createMetrics('0'), retrySeconds })
  assert.ok(made)
  return made
}

function send(through: Mailer, to = 'ann@example.org') {
  const resourceId = newId()
  const about = { action: 'user.mail_invitation', resourceType: 'user', resourceId, orgId: null }
  const text = `the link: https://muster.example.com/accept-invite#token=${token}`
  through.send({ to, subject: 'Hello', text, html: `<p>${text}</p>`, about })
  return resourceId
}

const outcomeOf = (resourceId: string) =>
  until('the outcome of a mail', async () => {
    const [row] = await db.query<{ result: string; details: { reason?: string } }>(
      'select result, details from audit where resource_id = $1',
      [resourceId],
    )
    return row
  })

async function withSmtp(work: (smtp: TestSmtp) => Promise<void>): Promise<void> {
  const smtp = await startSmtp()
  try {
    await work(smtp)
  } finally {
    await smtp.close()
  }
}

test('without SMTP_URL there is no mailer', () => {
  const config = { smtpUrl: undefined, publicOrigin: undefined }
  const log = createLog('silent', 'test')
  assert.equal(mailer({ config, db, log, metrics: createMetrics('0') }), undefined)
})

test('a mail that is put off is sent again, one that is refused is not', () =>
  withSmtp(async (smtp) => {
    const through = open(smtp.url, [0, 0, 0])
    smtp.refuseNext('451 come back later', '451 come back later')
    const postponed = await outcomeOf(send(through))
    assert.equal(postponed.result, 'success')
    assert.deepEqual([smtp.received.length, smtp.connections], [1, 3])
    assert.equal(smtp.received[0]?.from, 'muster@muster.example.com')
    smtp.refuseNext('550 unknown')
    const refused = await outcomeOf(send(through))
    assert.equal(refused.result, 'failure')
    assert.match(refused.details.reason ?? '', /550 unknown/)
    assert.deepEqual([smtp.received.length, smtp.connections], [1, 4])
    await through.close()
  }))

test('a server that is not there is tried until the pauses are used up', async () => {
  const smtp = await startSmtp()
  await smtp.close()
  const through = open(smtp.url, [0, 0])
  const { result, details } = await outcomeOf(send(through))
  assert.equal(result, 'failure')
  assert.match(details.reason ?? '', /ECONNREFUSED/)
  await through.close()
})

test('what waits to be tried again holds up neither other mails nor the end', () =>
  withSmtp(async (smtp) => {
    const through = open(smtp.url, [3600])
    smtp.refuseNext('451 come back later')
    const waiting = send(through)
    assert.equal((await outcomeOf(send(through, 'bob@example.org'))).result, 'success')
    await through.close()
    const { result, details } = await outcomeOf(waiting)
    assert.deepEqual([result, details.reason], ['failure', 'the hub stopped'])
  }))

test('past the bound a mail is given up at once', () =>
  withSmtp(async (smtp) => {
    smtp.fallSilent()
    const through = open(smtp.url, [])
    for (let n = 0; n < limits.mailsOpenMax; n++) send(through)
    const { result, details } = await outcomeOf(send(through))
    assert.deepEqual([result, details.reason], ['failure', 'too many mails are waiting'])
    // What still waits ends with the server.
    await smtp.close()
    await through.close()
  }))

test('a password is sent over TLS or not at all, unless the URL says otherwise', () =>
  withSmtp(async (smtp) => {
    const withUser = smtp.url.replace('//', '//ann%40example.org:hunter2hunter2@')
    const insisting = open(withUser, [])
    const { result, details } = await outcomeOf(send(insisting))
    assert.equal(result, 'failure')
    assert.ok(!JSON.stringify(details).includes('hunter2'))
    assert.equal(smtp.received.length, 0)
    await insisting.close()
    const trusting = open(`${smtp.url}?requireTLS=false`, [])
    assert.equal((await outcomeOf(send(trusting))).result, 'success')
    await trusting.close()
  }))

test('neither link nor password is logged or audited, even where the server quotes them', () =>
  withSmtp(async (smtp) => {
    const lines: string[] = []
    const log = pino({ level: 'trace' }, { write: (line: string) => void lines.push(line) })
    const through = open(smtp.url, [0], log)
    const quote = `our filter dislikes #token=${token} of smtp://ann:hunter2@mail.example.com`
    smtp.refuseNext(`451 ${quote}`, `550 ${quote}`)
    const refused = await outcomeOf(send(through))
    assert.match(refused.details.reason ?? '', /our filter dislikes/)
    assert.equal((await outcomeOf(send(through))).result, 'success')
    await through.close()
    assert.equal(lines.length, 3)
    const told = lines.join('') + JSON.stringify(refused)
    assert.ok(!told.includes(token) && !told.includes('hunter2'), told)
  }))

test('a mistake in SMTP_URL is named at the start, without what is secret in it', () => {
  const problem = (url: string) => {
    try {
      readConfig({ SMTP_URL: url, JWT_SECRET: 'x'.repeat(32), AGENT_ENROLLMENT_SECRET: 'x' })
      return ''
    } catch (error) {
      return String(error)
    }
  }
  assert.equal(problem('smtps://ann:secret@mail.example.com:465?from=hub@example.com'), '')
  assert.equal(problem('smtp://[::1]:25?requireTLS=false'), '')
  for (const [url, named] of [
    ['http://ann:secret@mail.example.com', 'SMTP_URL is not a smtp:// or smtps:// address'],
    ['mail.example.com:25', 'SMTP_URL is not'],
    ['smtp://ann:secret@mail.example.com?requireTls=true', 'requireTls'],
    ['smtp://ann:secret@mail.example.com?requireTLS=yes', 'requireTLS is neither'],
    ['smtp://ann:secret@mail.example.com?from=me', 'from is no e-mail address'],
  ] as const) {
    assert.ok(problem(url).includes(named), `${url}: ${problem(url)}`)
    assert.ok(!problem(url).includes('secret@'))
  }
})
