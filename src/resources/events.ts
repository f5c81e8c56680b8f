// Events as they happen: the stream of server-sent events. What is in it stands in `events.ts`, how it is
// read in `event_streams.ts`.
import { Type, type Static } from 'typebox'
import type { Scope } from '../auth.ts'
import type { Queryable } from '../db.ts'
import { AppError } from '../errors.ts'
import { eventTypes, type EventType } from '../events.ts'
import { positionOf, requireKept, type EventFilter } from '../outbox.ts'
import { invalid, route, type Call, type Context, type Reply, type Route } from '../route.ts'
import { Id, nullable, Time } from './shapes.ts'

/** The envelope, in the stream's `data:` and in a webhook's body. */
export const Event = Type.Object({
  id: Id,
  type: Type.Enum([...eventTypes]),
  at: Time,
  orgId: nullable(Id),
  data: Type.Record(Type.String(), Type.Unknown()),
})

const StreamQuery = Type.Object({
  types: Type.Optional(
    Type.String({
      maxLength: 1024,
      description: `Some of these alone, separated by commas: ${eventTypes.join(', ')}.`,
    }),
  ),
  orgId: Type.Optional(Type.String({ format: 'uuid', description: 'This organization alone.' })),
})

export const eventRoutes: Route[] = [
  route({
    method: 'GET',
    path: '/events',
    name: 'streamEvents',
    tag: 'events',
    summary:
      'Listen to events (SSE): `id`, `event` with the type, `data` with {id, type, at, orgId, data}. Of users and of audit exports hear those who may read users and the audit.',
    may: 'events.read',
    query: StreamQuery,
    headers: ['last-event-id'],
    responses: { 200: null },
    handle: stream,
  }),
]

async function stream(
  ctx: Context,
  call: Call<undefined, Static<typeof StreamQuery>, undefined>,
): Promise<Reply> {
  const { actor, query } = call
  const filter: EventFilter = { orgId: query.orgId, types: typesOf(query.types) }
  const lastEventId = call.header('last-event-id')
  const resumed = lastEventId === '' ? undefined : positionOf(lastEventId)
  if (resumed) await requireKept(ctx.db, resumed)
  if (query.orgId !== undefined) await requireOrganization(ctx.db, actor, query.orgId)
  const now = await ctx.streams.now()
  ctx.streams.admit(actor)
  return {
    status: 200,
    headers: { 'Content-Type': 'text/event-stream; charset=utf-8', 'X-Accel-Buffering': 'no' },
    sink: (sink) => ctx.streams.open({ actor, filter, after: resumed ?? now }, now, sink),
  }
}

function typesOf(text: string | undefined): EventType[] | undefined {
  if (text === undefined) return undefined
  const known: readonly string[] = eventTypes
  const types = text.split(',').map((type) => type.trim())
  const unknown = types.find((type) => !known.includes(type))
  if (unknown !== undefined) throw invalid('/query/types', `holds no type of event: "${unknown}"`)
  return types as EventType[]
}

/** A stream that stays silent because its organization is not there would be no answer. */
async function requireOrganization(db: Queryable, scope: Scope, id: string): Promise<void> {
  const rows = await db.query(
    `select true as found from organizations where id = $1 and ($2::uuid is null or id = $2)`,
    [id, scope.orgId],
  )
  if (rows.length === 0) throw new AppError('NOT_FOUND', `there is no organization ${id}`)
}
