// A whole hub for a test file: real PostgreSQL, real sockets, port 0. Every JSON answer is checked against
// the schema of its route; a mismatch fails the test that closes the hub.
import assert from 'node:assert/strict'
import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Compile } from 'typebox/compile'
import { ErrorBodySchema } from '../../src/openapi.ts'
import { run, type Hub } from '../../src/main.ts'
import type { Route } from '../../src/route.ts'
import { createDatabase, type TestDatabase } from './postgres.ts'
import { removeFolder } from './folders.ts'

export const admin = { email: 'admin@example.com', password: 'correct horse battery' }
export const enrollmentSecret = 'test-enrollment-secret'
export const metricsToken = 'test-metrics-token'

export interface Answer {
  status: number
  headers: Headers
  text: string
  // oxlint-disable-next-line typescript/no-explicit-any -- tests reach into bodies of every shape
  body: any
}

export interface Ask {
  token?: string | undefined
  body?: unknown
  /** Sent as it is, instead of `body`. */
  raw?: string
  headers?: Record<string, string>
}

export interface Device {
  deviceId: string
  agentToken: string
  orgId: string
  siteId: string
  websocketUrl: string
}

export class TestHub {
  readonly hub: Hub
  readonly database: TestDatabase
  readonly env: Record<string, string>
  token = ''
  private readonly mismatches: string[]
  private readonly dataDir: string

  constructor(
    hub: Hub,
    database: TestDatabase,
    env: Record<string, string>,
    mismatches: string[],
    dataDir: string,
  ) {
    this.hub = hub
    this.database = database
    this.env = env
    this.mismatches = mismatches
    this.dataDir = dataDir
  }

  get origin(): string {
    return this.hub.origin
  }

  /** One request; `path` is below /api/v1 unless it starts with `{origin}`. */
  async ask(method: string, path: string, options: Ask = {}): Promise<Answer> {
    const url = path.startsWith('{origin}')
      ? path.replace('{origin}', this.origin)
      : `${this.origin}/api/v1${path}`
    const token = 'token' in options ? options.token : this.token
    const content =
      options.raw ?? (options.body === undefined ? null : JSON.stringify(options.body))
    const response = await fetch(url, {
      method,
      headers: {
        ...(token ? { authorization: `Bearer ${token}` } : {}),
        ...(content === null ? {} : { 'content-type': 'application/json' }),
        ...options.headers,
      },
      body: content,
    })
    const text = await response.text()
    const json = response.headers.get('content-type')?.startsWith('application/json')
    return {
      status: response.status,
      headers: response.headers,
      text,
      body: json && text !== '' ? JSON.parse(text) : undefined,
    }
  }

  get = (path: string, options?: Ask) => this.ask('GET', path, options)
  post = (path: string, body: unknown = {}, options: Ask = {}) =>
    this.ask('POST', path, { body, ...options })
  patch = (path: string, body: unknown, options: Ask = {}) =>
    this.ask('PATCH', path, { body, ...options })
  delete = (path: string, options?: Ask) => this.ask('DELETE', path, options)

  async signIn(email: string, password: string): Promise<string> {
    const answer = await this.post('/auth/login', { email, password }, { token: undefined })
    assert.equal(answer.status, 200, answer.text)
    return answer.body.accessToken as string
  }

  async enroll(more: Record<string, unknown> = {}): Promise<Device> {
    const body = { enrollmentSecret, hostname: 'host', os: 'linux', arch: 'amd64', ...more }
    const answer = await this.post('/agents/enroll', body, { token: undefined })
    assert.equal(answer.status, 201, answer.text)
    return answer.body as Device
  }

  /** Closes the hub and its database; fails when an answer did not fit its schema. */
  async close(): Promise<void> {
    await this.hub.close()
    await this.database.drop()
    removeFolder(this.dataDir)
    assert.deepEqual(this.mismatches, [], 'answers that do not fit their schemas')
  }
}

/** Starts a hub; `env` adds to or replaces the defaults of a test. */
export async function startHub(env: Record<string, string> = {}): Promise<TestHub> {
  const database = await createDatabase()
  const dataDir = mkdtempSync(join(tmpdir(), 'muster-hub-'))
  const full = {
    DATABASE_URL: database.url,
    DATA_DIR: dataDir,
    PORT: '0',
    LOG_LEVEL: process.env['TEST_LOG_LEVEL'] ?? 'silent',
    JWT_SECRET: 'a test secret of more than 32 bytes',
    AGENT_ENROLLMENT_SECRET: enrollmentSecret,
    METRICS_SCRAPE_TOKEN: metricsToken,
    ADMIN_EMAIL: admin.email,
    ADMIN_PASSWORD: admin.password,
    LIMIT_API: '0',
    LIMIT_LOGIN: '0',
    LIMIT_LOGIN_IP: '0',
    LIMIT_CONNECT: '0',
    ...env,
  }
  const mismatches: string[] = []
  const hub = await run({ env: full, onAnswer: checkAnswers(mismatches) })
  const test = new TestHub(hub, database, full, mismatches, dataDir)
  if (full.ADMIN_EMAIL === admin.email) test.token = await test.signIn(admin.email, admin.password)
  return test
}

const errors = Compile(ErrorBodySchema)

function checkAnswers(mismatches: string[]) {
  const compiled = new Map<Route, Map<number, ReturnType<typeof Compile>>>()
  return (route: Route, status: number, text: string): void => {
    const body: unknown = text === '' ? undefined : JSON.parse(text)
    const where = `${route.method} ${route.path} ${status}`
    if (status >= 400 && !(status in route.responses)) {
      if (!errors.Check(body)) mismatches.push(`${where}: ${text}`)
      return
    }
    const schema = route.responses[status]
    if (schema === undefined) mismatches.push(`${where}: a status that the route does not name`)
    else if (schema === null) {
      if (text !== '') mismatches.push(`${where}: a body where none is promised`)
    } else {
      const byStatus = compiled.get(route) ?? new Map<number, ReturnType<typeof Compile>>()
      compiled.set(route, byStatus)
      const check = byStatus.get(status) ?? Compile(schema)
      byStatus.set(status, check)
      if (!check.Check(body)) {
        mismatches.push(
          `${where}: ${JSON.stringify([...check.Errors(body)].slice(0, 3))} in ${text}`,
        )
      }
    }
  }
}
