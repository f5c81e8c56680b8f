// Who may know whom: src/ is one ordered list, the threads and the agent stand beside it, and a package
// that could be replaced is known to few files.
import assert from 'node:assert/strict'
import { globSync, readFileSync } from 'node:fs'
import { join, normalize } from 'node:path'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'

const root = fileURLToPath(new URL('..', import.meta.url))

/** A file of src/ loads only files to the left of its own; `resources` is the whole folder. */
const order = `
  errors ids once limits config log loop_delay garbage metrics protocol terminal_frames terminal_streams terminal_client clean versions executable release_manifest release_files release_keys release_folder byte_range batch private_folder uws address destinations auth seal schema_errors schema_values actions
  http_headers database_socket db command_row handoff_sql redis bus webhook_secrets listener database_rights hub_order migrate postgres_programs postgres_process postgres_cluster postgres_lock
  embedded database data_keys page audit audit_chains slots releases downloads mail events outbox alerts identities event_streams sessions allowance terminal_rows terminal_recorder terminal_session terminal_table terminal_agents terminal_access terminal_ends stray_frames terminals terminal_messages terminal_link terminal_lines terminal_routes terminal_relay passwords rate_tally rate_sharing rates abuse agent_tokens mailbox shards observe peers
  queue execution_ends upgrades execution_targets command_statements commands handoffs route openapi_errors openapi_operations openapi resources bootstrap http_reply http_request http_body http_stream sse turns http front terminal_sockets listen leaving greeting main program start
`
  .trim()
  .split(/\s+/)

/** All that a package's name may be imported by, types too. */
const knownBy: Record<string, string[]> = {
  '@redis/client': ['src/redis.ts'],
  'uWebSockets.js': [
    'src/front.ts',
    'src/http.ts',
    'src/http_reply.ts',
    'src/http_request.ts',
    'src/http_stream.ts',
    'src/listen.ts',
    'src/sse.ts',
    'src/terminal_sockets.ts',
    'src/uws.ts',
  ],
  jose: ['src/auth.ts'],
  nodemailer: ['src/mail.ts'],
  'node-pg-migrate': ['src/migrate.ts'],
  pg: [
    'src/database_rights.ts',
    'src/db.ts',
    'src/hub_order.ts',
    'src/listener.ts',
    'src/migrate.ts',
  ],
  'pg-boss': ['workers/jobs.ts'],
}

interface Import {
  from: string
  /** A path below the root, or a package. */
  to: string
  typeOnly: boolean
  /** Only when it is reached, not with the file. */
  late: boolean
}

const imports = globSync('{src,workers,agent}/**/*.{js,ts}', { cwd: root })
  .toSorted()
  .flatMap(importsOf)

function importsOf(path: string): Import[] {
  const from = path.replaceAll('\\', '/')
  const text = readFileSync(join(root, from), 'utf8')
  const statements =
    /^(?:import|export)\s+(type\s)?(?:[\w\s{},*$]+?\sfrom\s+)?'([^']+)'|\bimport\('([^']+)'\)|\brequire\('([^']+)'\)/gm
  return [...text.matchAll(statements)].map(([, type, named, dynamic, required]) => {
    const to = named ?? dynamic ?? required ?? ''
    const target = to.startsWith('.') ? normalize(join(from, '..', to)).replaceAll('\\', '/') : to
    return { from, to: target, typeOnly: type !== undefined, late: dynamic !== undefined }
  })
}

/** The name in the list of a file of src/. */
function nameOf(path: string): string {
  return /^src\/(\w+)/.exec(path)?.[1] ?? path
}

const written = (wrong: Import[]) => wrong.map(({ from, to }) => `${from} imports ${to}`)

test('the list names every file of src/ once', () => {
  const files = new Set(
    globSync('src/*', { cwd: root }).map((path) => nameOf(`src/${path.slice(4)}`)),
  )
  assert.deepEqual(order.toSorted(), [...files].toSorted())
})

test('a file of src/ loads only what stands to its left', () => {
  const place = (path: string) => order.indexOf(nameOf(path))
  const inside = imports.filter(({ from, to }) => from.startsWith('src/') && to.startsWith('src/'))
  assert.ok(inside.length > 200, `only ${inside.length} imports were found`)
  const wrong = inside.filter(
    ({ from, to, typeOnly }) => !typeOnly && nameOf(from) !== nameOf(to) && place(to) > place(from),
  )
  assert.deepEqual(written(wrong), [])
})

test('no thread starts with what most hubs never need: each weighs megabytes', () => {
  const late = new Set([
    '@redis/client',
    'node-pg-migrate',
    'nodemailer',
    'node:http',
    'node:https',
  ])
  const wrong = imports.filter(
    ({ from, to, ...how }) =>
      /^(src|workers)\//.test(from) && late.has(to) && !how.late && !how.typeOnly,
  )
  assert.deepEqual(written(wrong), [])
})

test('the threads know neither http, front nor main, and src/ loads no thread', () => {
  const wrong = imports.filter(
    ({ from, to, typeOnly }) =>
      (from.startsWith('workers/') && /^src\/(http|front|main|program)\.ts$/.test(to)) ||
      (from.startsWith('src/') && to.startsWith('workers/') && !typeOnly),
  )
  assert.deepEqual(written(wrong), [])
})

/** What hub and agent must read alike: the wire, terminals, and what a release is. */
const shared = new Set(
  [
    'protocol',
    'terminal_frames',
    'terminal_streams',
    'versions',
    'executable',
    'release_manifest',
  ].map((name) => `src/${name}.ts`),
)

test('the agent knows of the hub what both must read alike, which loads nothing else', () => {
  const wrong = imports.filter(
    ({ from, to }) =>
      (shared.has(from) || from.startsWith('agent/')) &&
      /^(src|workers)\//.test(to) &&
      !shared.has(to),
  )
  assert.deepEqual(written(wrong), [])
})

for (const [name, files] of Object.entries(knownBy)) {
  test(`${name} is known to ${files.join(', ')} alone`, () => {
    const found = imports.filter(({ to }) => to === name || to.startsWith(`${name}/`))
    assert.deepEqual([...new Set(found.map(({ from }) => from))].toSorted(), files)
  })
}
