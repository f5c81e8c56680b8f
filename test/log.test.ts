// What may never be printed, however it gets into a line.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createLog } from '../src/log.ts'

function logged(write: (log: ReturnType<typeof createLog>) => void): Record<string, unknown> {
  const lines: string[] = []
  write(createLog('info', 'test', { write: (line) => void lines.push(line) }))
  assert.equal(lines.length, 1)
  return JSON.parse(lines[0] ?? '') as Record<string, unknown>
}

const names = [
  'password',
  'currentPassword',
  'newPassword',
  'accessToken',
  'refreshToken',
  'agentToken',
  'enrollmentSecret',
  'token',
  'secret',
  'authorization',
  'key',
  'connectionString',
]

for (const name of names) {
  test(`the value of ${name} is blanked, in a line and in what it holds`, () => {
    const body = { [name]: { of: 'value' }, email: 'a@b.c' }
    const line = logged((log) => log.info({ ...body, body, status: 200 }, 'said'))
    assert.equal(line[name], '[secret]')
    assert.deepEqual(line['body'], { [name]: '[secret]', email: 'a@b.c' })
    assert.deepEqual([line['email'], line['status'], line['msg']], ['a@b.c', 200, 'said'])
    assert.deepEqual(body[name], { of: 'value' }, 'what was logged is as before')
  })
}

test('an error is told by few of its members, and passwords in its message are blanked', () => {
  const error = Object.assign(new TypeError('no postgres://me:hidden@host/x'), {
    code: 'E1',
    password: 'hidden',
  })
  for (const line of [
    logged((log) => log.error({ err: error, token: null }, 'failed')),
    logged((log) => log.error(error, 'failed')),
  ]) {
    const { type, message, code } = line['err'] as Record<string, unknown>
    assert.deepEqual([type, message, code], ['TypeError', 'no postgres://me:[secret]@host/x', 'E1'])
    assert.doesNotMatch(JSON.stringify({ ...(line['err'] as object), stack: '' }), /hidden/)
  }
})

test('a line without secrets is written as it is', () => {
  const given = {
    requestId: 'r',
    ids: ['a'],
    at: null,
    place: { orgId: 'o', tags: ['t'] },
    ms: 1.5,
  }
  const { level, time, name, msg, ...line } = logged((log) => log.info(given, 'request'))
  assert.deepEqual(line, given)
  assert.deepEqual([level, typeof time, name, msg], [30, 'string', 'test', 'request'])
})
