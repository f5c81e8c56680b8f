// The library of scripts: their shape, queries and routes. A change makes a new version; what runs is
// `executions.ts`.
import { createHash } from 'node:crypto'
import { isDeepStrictEqual } from 'node:util'
import { Type, type Static } from 'typebox'
import { languages } from '../actions.ts'
import { auditOf, insertAudit } from '../audit.ts'
import type { Actor, Scope } from '../auth.ts'
import { Where, type Queryable, type Row } from '../db.ts'
import { AppError } from '../errors.ts'
import { newId } from '../ids.ts'
import { limits } from '../limits.ts'
import { pageOf, pageQuery, pager, type PageRow, type Pager } from '../page.ts'
import {
  idParams,
  invalid,
  route,
  type Call,
  type Context,
  type Reply,
  type Route,
} from '../route.ts'
import { declared, NewParameters, Parameter } from './parameters.ts'
import { findItem } from './rows.ts'
import { Id, Name, nullable, Time } from './shapes.ts'

const systems = ['linux', 'darwin', 'windows'] as const

const Language = Type.Enum([...languages])
const Content = Type.String({
  minLength: 1,
  maxLength: limits.payloadBytesMax,
  description: `At most ${limits.payloadBytesMax} bytes.`,
})
const Systems = Type.Array(Type.Enum([...systems]), { minItems: 1, maxItems: systems.length })
const Description = nullable(Type.String({ maxLength: limits.descriptionCharsMax }))
const Timeout = Type.Integer({
  minimum: 1,
  maximum: limits.scriptTimeoutSecondsMax,
  default: limits.commandTimeoutSecondsDefault,
})

export const Script = Type.Object({
  id: Id,
  orgId: nullable(Id),
  name: Type.String(),
  description: nullable(Type.String()),
  language: Language,
  content: Type.String(),
  os: Systems,
  parameters: Type.Array(Parameter),
  timeoutSeconds: Timeout,
  version: Type.Integer({ minimum: 1 }),
  sha256: Type.String({ description: 'Of the content, in hex.' }),
  createdBy: nullable(Id),
  createdAt: Time,
  updatedAt: Time,
})

const NewScript = Type.Object({
  orgId: Type.Optional(
    nullable(Type.String({ format: 'uuid', description: 'Yours when absent; null: everyone’s.' })),
  ),
  name: Name,
  description: Type.Optional(Description),
  language: Language,
  content: Content,
  os: Type.Optional(Systems),
  parameters: Type.Optional(NewParameters),
  timeoutSeconds: Type.Optional(Timeout),
})

const ScriptPatch = Type.Object(
  {
    name: Type.Optional(Name),
    description: Type.Optional(Description),
    language: Type.Optional(Language),
    content: Type.Optional(Content),
    os: Type.Optional(Systems),
    parameters: Type.Optional(NewParameters),
    timeoutSeconds: Type.Optional(Timeout),
  },
  { minProperties: 1 },
)

const ScriptQuery = Type.Object({ ...pageQuery, orgId: Type.Optional(Id) })

const tag = 'scripts'

export const scriptRoutes: Route[] = [
  route({
    method: 'GET',
    path: '/scripts',
    name: 'listScripts',
    tag,
    summary: 'List the scripts of your organization and the platform’s, newest first.',
    may: 'scripts.read',
    query: ScriptQuery,
    responses: { 200: pageOf(Script) },
    handle: list,
  }),
  route({
    method: 'POST',
    path: '/scripts',
    name: 'createScript',
    tag,
    summary: 'Add a script; the platform’s own are added by platform admins.',
    may: 'scripts.write',
    organizationWide: true,
    body: NewScript,
    responses: { 201: Script },
    handle: create,
  }),
  route({
    method: 'GET',
    path: '/scripts/:id',
    name: 'getScript',
    tag,
    summary: 'Get a script.',
    may: 'scripts.read',
    params: idParams,
    responses: { 200: Script },
    handle: async ({ db }, { actor, params }) => ({
      status: 200,
      json: await getScript(db, actor, params.id),
    }),
  }),
  route({
    method: 'PATCH',
    path: '/scripts/:id',
    name: 'updateScript',
    tag,
    summary: 'Change a script: a new version. Executions go on with the one they began with.',
    may: 'scripts.write',
    organizationWide: true,
    params: idParams,
    body: ScriptPatch,
    responses: { 200: Script },
    handle: update,
  }),
  route({
    method: 'DELETE',
    path: '/scripts/:id',
    name: 'deleteScript',
    tag,
    summary: 'Delete a script; its executions go on and stay readable.',
    may: 'scripts.write',
    organizationWide: true,
    params: idParams,
    responses: { 200: Script },
    handle: remove,
  }),
]

// ---- handlers --------------------------------------------------------------------------------

async function list(
  ctx: Context,
  { actor, query }: Call<undefined, Static<typeof ScriptQuery>, undefined>,
): Promise<Reply> {
  const page = pager(ctx.cursorKey, ['scripts', actor.orgId, query.orgId ?? null], query)
  const rows = await listScripts(ctx.db, actor, query.orgId, page)
  const cut = rows.length < (rows[0]?.found ?? 0)
  return { status: 200, json: page.envelope(rows, cut) }
}

/** All of a script that a change may touch. */
interface Draft {
  name: string
  description: string | null
  language: string
  content: string
  os: string[]
  parameters: Parameter[]
  timeoutSeconds: number
}

async function create(
  ctx: Context,
  call: Call<undefined, undefined, Static<typeof NewScript>>,
): Promise<Reply> {
  const { actor, body } = call
  const orgId = body.orgId === undefined ? actor.orgId : body.orgId
  if (orgId === null) requirePlatform(actor)
  const draft: Draft = {
    name: body.name,
    description: body.description ?? null,
    language: body.language,
    content: requireContent(body.content),
    os: body.os ? [...new Set(body.os)] : [...systems],
    parameters: declared(body.parameters ?? []),
    timeoutSeconds: body.timeoutSeconds ?? limits.commandTimeoutSecondsDefault,
  }
  const id = newId()
  const json = await ctx.db.transaction(async (tx) => {
    await insertScript(tx, actor, { id, orgId, name: draft.name, description: draft.description })
    await insertVersion(tx, id, 1, draft, actor.userId)
    const subject = { action: 'script.create', resourceType: 'script', resourceId: id, orgId }
    const details = { after: { version: 1, ...auditable(draft) } }
    await insertAudit(tx, [auditOf(call, { ...subject, details })])
    return getScript(tx, actor, id)
  })
  return { status: 201, json, headers: { Location: `/api/v1/scripts/${id}` } }
}

async function update(
  ctx: Context,
  call: Call<{ id: string }, undefined, Static<typeof ScriptPatch>>,
): Promise<Reply> {
  const { actor, params, body } = call
  const { parameters, os, ...rest } = body
  if (body.content !== undefined) requireContent(body.content)
  const change = {
    ...rest,
    ...(os ? { os: [...new Set(os)] } : {}),
    ...(parameters ? { parameters: declared(parameters) } : {}),
  }
  const json = await ctx.db.transaction(async (tx) => {
    const { id, orgId, version, ...before } = await lockScript(tx, actor, params.id)
    const after: Draft = { ...before, ...change }
    if (!isDeepStrictEqual(after, before)) {
      const next = version + 1
      await insertVersion(tx, id, next, after, actor.userId)
      await tx.query(
        `update scripts set name = $2, description = $3, version = $4, updated_at = now()
         where id = $1`,
        [id, after.name, after.description, next],
      )
      await forgetVersions(tx, id, next)
      const subject = { action: 'script.update', resourceType: 'script', resourceId: id, orgId }
      const details = {
        before: { version, ...auditable(before) },
        after: { version: next, ...auditable(after) },
      }
      await insertAudit(tx, [auditOf(call, { ...subject, details })])
    }
    return getScript(tx, actor, id)
  })
  return { status: 200, json }
}

async function remove(
  ctx: Context,
  call: Call<{ id: string }, undefined, undefined>,
): Promise<Reply> {
  const { actor, params } = call
  const json = await ctx.db.transaction(async (tx) => {
    const { id, orgId, version, name } = await lockScript(tx, actor, params.id)
    const gone = await getScript(tx, actor, id)
    await tx.query('update scripts set deleted_at = now(), updated_at = now() where id = $1', [id])
    const subject = { action: 'script.delete', resourceType: 'script', resourceId: id, orgId }
    await insertAudit(tx, [auditOf(call, { ...subject, details: { before: { name, version } } })])
    return gone
  })
  return { status: 200, json }
}

function requirePlatform(actor: Actor): void {
  if (actor.orgId === null) return
  throw new AppError('FORBIDDEN', 'scripts of the platform are written by platform admins')
}

function requireContent(content: string): string {
  if (Buffer.byteLength(content) <= limits.payloadBytesMax) return content
  throw invalid('/content', `may hold at most ${limits.payloadBytesMax} bytes`)
}

function sha256Of(content: string): string {
  return createHash('sha256').update(content).digest('hex')
}

/** A script for the audit: its content by its hash. */
function auditable({ content, ...rest }: Draft) {
  return { ...rest, sha256: sha256Of(content) }
}

// ---- queries ---------------------------------------------------------------------------------

const columns = `s.id, s.org_id as "orgId", s.name, s.description, v.language, v.content, v.os,
  v.parameters, v.timeout_seconds as "timeoutSeconds", s.version, v.sha256,
  s.created_by as "createdBy", iso(s.created_at) as "createdAt", iso(s.updated_at) as "updatedAt"`

const tables = 'scripts s join script_versions v on v.script_id = s.id and v.version = s.version'

/** The condition that a script `s` is there and the scope's to read: its own, or the platform's. */
export function readableScripts(scope: Scope): Where {
  const where = new Where().and('s.deleted_at is null')
  if (scope.orgId !== null) where.and('(s.org_id is null or s.org_id = ?)', scope.orgId)
  return where
}

/** Up to a page of scripts, fewer where their contents are large; `found`: as many as there were. */
function listScripts(
  db: Queryable,
  scope: Scope,
  orgId: string | undefined,
  page: Pager,
): Promise<(PageRow & { found: number })[]> {
  const where = readableScripts(scope)
  if (orgId !== undefined) where.and('s.org_id = ?', orgId)
  if (page.after) where.and('s.id < ?::uuid', page.after[0])
  const limit = where.value(page.limit + 1)
  // A limit in the lateral: joined, the versions of every script would be read for one page.
  // Each in the order of its index: an organization's own and the platform's lie apart in it.
  const part = (condition: string) => `(
    select s.id, s.version from scripts s ${where.text()} ${condition}
    order by s.id desc limit ${limit})`
  const parts =
    scope.orgId === null || orgId !== undefined
      ? [part('')]
      : [part(`and s.org_id = ${where.value(scope.orgId)}`), part('and s.org_id is null')]
  return db.query(
    `with ids as (${parts.join(' union all ')}), page as (
      select i.id, v.content_bytes,
        sum(v.content_bytes) over (order by i.id desc) as bytes, count(*) over () as found
      from (select * from ids order by id desc limit ${limit}) i
      cross join lateral (
        select content_bytes from script_versions where script_id = i.id and version = i.version limit 1
      ) v
    )
    select row_to_json(t)::text as item, array[t.id::text] as keys, p.found::int as found
    from page p
    join lateral (select ${columns} from ${tables} where s.id = p.id) t on true
    where p.bytes - p.content_bytes <= ${limits.pageBytesMax}
    order by p.id desc`,
    where.values,
  )
}

/** A script as JSON text. Throws NOT_FOUND outside of the scope. */
async function getScript(db: Queryable, scope: Scope, id: string): Promise<string> {
  const where = readableScripts(scope).and('s.id = ?', id)
  const item = await findItem(db, { columns, tables, id: 's.id' }, where)
  if (item !== undefined) return item
  throw scriptNotFound(id)
}

/** Adds a script. Throws NOT_FOUND when the organization is not there or not the scope's. */
async function insertScript(
  tx: Queryable,
  actor: Actor,
  script: { id: string; orgId: string | null; name: string; description: string | null },
): Promise<void> {
  const made = await tx.query(
    `insert into scripts (id, org_id, name, description, created_by)
     select $1, $2::uuid, $3, $4, $5
     where $2::uuid is null or exists (select from organizations o
       where o.id = $2 and ($6::uuid is null or o.id = $6))
     returning id`,
    [script.id, script.orgId, script.name, script.description, actor.userId, actor.orgId],
  )
  if (made.length > 0) return
  throw new AppError('NOT_FOUND', `there is no organization ${script.orgId}`)
}

async function insertVersion(
  tx: Queryable,
  scriptId: string,
  version: number,
  draft: Draft,
  userId: string,
): Promise<void> {
  await tx.query(
    `insert into script_versions (script_id, version, language, content, content_bytes, os,
       parameters, timeout_seconds, sha256, created_by)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
    [
      scriptId,
      version,
      draft.language,
      draft.content,
      Buffer.byteLength(draft.content),
      draft.os,
      JSON.stringify(draft.parameters),
      draft.timeoutSeconds,
      sha256Of(draft.content),
      userId,
    ],
  )
}

/** Versions before this one that no execution ran. */
async function forgetVersions(tx: Queryable, scriptId: string, before: number): Promise<void> {
  await tx.query(
    `delete from script_versions v where v.script_id = $1 and v.version < $2 and not exists (
       select from executions e where e.script_id = v.script_id and e.version = v.version)`,
    [scriptId, before],
  )
}

interface Locked extends Row, Draft {
  id: string
  orgId: string | null
  version: number
}

/** The script for a change. Throws NOT_FOUND, and FORBIDDEN for one that the scope may only read. */
async function lockScript(tx: Queryable, actor: Actor, id: string): Promise<Locked> {
  const where = readableScripts(actor).and('s.id = ?', id)
  const [row] = await tx.query<Locked>(
    `select s.id, s.org_id as "orgId", s.version, s.name, s.description, v.language, v.content,
       v.os, v.parameters, v.timeout_seconds as "timeoutSeconds"
     from ${tables} ${where.text()} for update of s`,
    where.values,
  )
  if (row === undefined) throw scriptNotFound(id)
  if (row.orgId === null) requirePlatform(actor)
  return row
}

export function scriptNotFound(id: string): AppError {
  return new AppError('NOT_FOUND', `there is no script ${id}`)
}
