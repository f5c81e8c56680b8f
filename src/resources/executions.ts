// Executions: the route that starts one, and how they and their results are read.
import { Type, type Static } from 'typebox'
import type { Scope } from '../auth.ts'
import { Where, type Queryable } from '../db.ts'
import { idFloor } from '../ids.ts'
import { limits } from '../limits.ts'
import { pageOf, pageQuery, pager, type PageQuery, type PageRow, type Pager } from '../page.ts'
import { idParams, route, type Call, type Context, type Reply, type Route } from '../route.ts'
import { withinScope } from './devices.ts'
import { DryRun, ExecuteBody, executeScript, Refused } from './execute.ts'
import {
  Execution,
  executionFields,
  executionSource,
  getExecution,
  scopedExecutions,
} from './execution_row.ts'
import { newestFirst } from './rows.ts'
import { Id, nullable } from './shapes.ts'

const NewExecution = Type.Object({ ...executionFields, failed: Type.Array(Refused) })

const ExecutionResult = Type.Object({
  deviceId: Id,
  commandId: Id,
  status: Type.String(),
  result: nullable(Type.Record(Type.String(), Type.Unknown())),
})

const ExecutionQuery = Type.Object({
  ...pageQuery,
  orgId: Type.Optional(Id),
  scriptId: Type.Optional(Id),
})

const tag = 'scripts'

export const executionRoutes: Route[] = [
  route({
    method: 'POST',
    path: '/scripts/:id/execute',
    name: 'executeScript',
    tag,
    summary: 'Run a script on named devices, or on all that a filter finds.',
    may: 'executions.write',
    params: idParams,
    body: ExecuteBody,
    headers: ['idempotency-key'],
    responses: { 200: DryRun, 202: NewExecution },
    handle: executeScript,
  }),
  route({
    method: 'GET',
    path: '/executions',
    name: 'listExecutions',
    tag,
    summary: 'List executions, newest first.',
    may: 'executions.read',
    query: ExecutionQuery,
    responses: { 200: pageOf(Execution) },
    handle: list,
  }),
  route({
    method: 'GET',
    path: '/executions/:id',
    name: 'getExecution',
    tag,
    summary: 'Get an execution with its counts.',
    may: 'executions.read',
    params: idParams,
    responses: { 200: Execution },
    handle: async ({ db }, { actor, params }) => ({
      status: 200,
      json: await getExecution(db, actor, params.id),
    }),
  }),
  route({
    method: 'GET',
    path: '/executions/:id/results',
    name: 'listExecutionResults',
    tag,
    summary:
      'List the commands that an execution started, newest first; pages end early past 8 MiB.',
    may: 'executions.read',
    params: idParams,
    query: Type.Object(pageQuery),
    responses: { 200: pageOf(ExecutionResult) },
    handle: listResults,
  }),
]

async function list(
  ctx: Context,
  { actor, query }: Call<undefined, Static<typeof ExecutionQuery>, undefined>,
): Promise<Reply> {
  const { orgId = null, scriptId = null } = query
  const binding = ['executions', actor.orgId, actor.siteIds, orgId, scriptId]
  const page = pager(ctx.cursorKey, binding, query)
  const where = scopedExecutions(actor)
  if (orgId !== null) where.and('e.org_id = ?', orgId)
  if (scriptId !== null) where.and('e.script_id = ?', scriptId)
  const rows = await newestFirst(ctx.db, executionSource, where, page)
  return { status: 200, json: page.envelope(rows) }
}

async function listResults(
  ctx: Context,
  { actor, params, query }: Call<{ id: string }, PageQuery, undefined>,
): Promise<Reply> {
  const { id } = params
  const page = pager(ctx.cursorKey, ['results', id, actor.orgId, actor.siteIds], query)
  await getExecution(ctx.db, actor, id)
  const { rows, cut } = await readResults(ctx.db, actor, id, page)
  return { status: 200, json: page.envelope(rows, cut) }
}

/**
 * A page of results, read in slices: each result may have 2 MiB, so that a page is bounded by its bytes as
 * well, and a slice is larger only when the ones before it were small.
 */
async function readResults(
  db: Queryable,
  scope: Scope,
  id: string,
  page: Pager,
): Promise<{ rows: PageRow[]; cut: boolean }> {
  const rows: PageRow[] = []
  let bytes = 0
  let take: number = limits.resultRowsMin
  let after = page.after?.[0] ?? null
  while (rows.length <= page.limit) {
    const wanted = Math.min(take, page.limit + 1 - rows.length)
    const slice = await readSlice(db, scope, id, after, wanted)
    rows.push(...slice)
    if (slice.length < wanted) return { rows, cut: false }
    for (const { item } of slice) bytes += item.length
    if (bytes > limits.pageBytesMax) return { rows, cut: true }
    after = slice.at(-1)?.keys[0] ?? after
    take = Math.max(1, Math.floor((limits.pageBytesMax / 2 / bytes) * rows.length))
  }
  return { rows, cut: false }
}

function readSlice(
  db: Queryable,
  scope: Scope,
  id: string,
  after: string | null,
  limit: number,
): Promise<PageRow[]> {
  // Its commands are not older than itself, but for the clocks of two hubs: older partitions are left alone.
  const madeMs = Number.parseInt(id.replace('-', '').slice(0, 12), 16)
  const where = withinScope(new Where(), scope)
    .and('c.execution_id = ?', id)
    .and('c.id >= ?::uuid', idFloor(madeMs - 3_600_000))
  if (after !== null) where.and('c.id < ?::uuid', after)
  return db.query<PageRow>(
    `select row_to_json(t)::text as item, array[t."commandId"::text] as keys from (
      select c.device_id as "deviceId", c.id as "commandId", c.status, c.result
      from commands c join devices d on d.id = c.device_id ${where.text()}
      order by c.id desc limit ${where.value(limit)}) t
    order by t."commandId" desc`,
    where.values,
  )
}
