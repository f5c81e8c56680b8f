// What machines ask of a hub: is it alive, should it get traffic, its metrics, and the API document.
import { Type } from 'typebox'
import { sameSecret } from '../auth.ts'
import { AppError } from '../errors.ts'
import { bearer } from '../http_headers.ts'
import { openapi } from '../openapi.ts'
import { route, type Call, type Context, type Reply, type Route } from '../route.ts'

const Health = Type.Object({
  status: Type.Literal('ok'),
  version: Type.String(),
  uptimeSeconds: Type.Integer(),
})

const check = (description: string) => Type.String({ description })
const Readiness = Type.Object({
  status: Type.Enum(['ok', 'degraded', 'draining', 'unavailable'], {
    description:
      '`degraded`: serves, with a part less. With 503: `draining` goes in order, `unavailable` is broken.',
  }),
  checks: Type.Object(
    {
      database: check('`ok` or why not.'),
      migrations: check('`ok` or why not.'),
      shards: check('`ok` or why not.'),
      jobs: check('`ok` or why not.'),
      redis: check('`ok`, `off`, or `down`: then each hub limits rates by itself.'),
      hubs: check('`ok`, or which settings of another hub that is alive differ from this one’s.'),
    },
    { description: 'Each part: `ok`, `off` where it is not used, or what is wrong with it.' },
  ),
})

export const healthRoutes: Route[] = [
  route({
    method: 'GET',
    path: '/health',
    at: 'origin',
    name: 'health',
    probe: true,
    tag: 'health',
    summary: 'The process is alive; asks nothing of PostgreSQL.',
    may: 'public',
    responses: { 200: Health },
    handle: (ctx) => ({
      status: 200,
      body: {
        status: 'ok',
        version: ctx.config.version,
        uptimeSeconds: Math.floor(process.uptime()),
      },
    }),
  }),
  route({
    method: 'GET',
    path: '/health/ready',
    at: 'origin',
    name: 'ready',
    probe: true,
    tag: 'health',
    summary:
      'May this hub get traffic? 503 while a part is down, and from the begin of a shutdown on.',
    may: 'public',
    responses: { 200: Readiness, 503: Readiness },
    handle: ready,
  }),
  route({
    method: 'GET',
    path: '/metrics',
    at: 'origin',
    name: 'metrics',
    probe: true,
    tag: 'health',
    summary: 'Metrics in the text format of Prometheus; needs the scrape token.',
    may: 'public',
    headers: ['authorization'],
    responses: { 200: null },
    handle: metrics,
  }),
  route({
    method: 'GET',
    path: '/openapi.json',
    name: 'openapi',
    tag: 'health',
    summary: 'This document.',
    may: 'public',
    responses: { 200: Type.Record(Type.String(), Type.Unknown()) },
    handle: async (ctx) => ({ status: 200, json: await documentOf(ctx) }),
  }),
]

/**
 * Nothing durable is in Redis, so the hub works without it, only slower. Hubs that differ both serve: taking one of
 * them out would need to know which, and both say the same of each other.
 */
const dispensable = new Set(['redis', 'hubs'])

async function ready(ctx: Context): Promise<Reply> {
  const checks = await ctx.checks()
  const broken = Object.keys(checks).filter(
    (name) => checks[name] !== 'ok' && checks[name] !== 'off',
  )
  const unavailable = ctx.draining() || broken.some((name) => !dispensable.has(name))
  // Whoever stops a hub waits for it to end; whoever finds one broken has something to do.
  const refusal = ctx.draining() ? 'draining' : 'unavailable'
  const status = unavailable ? refusal : broken.length > 0 ? 'degraded' : 'ok'
  return { status: unavailable ? 503 : 200, body: { status, checks } }
}

async function metrics(ctx: Context, call: Call<undefined, undefined, undefined>): Promise<Reply> {
  const { metricsToken } = ctx.config
  if (metricsToken === undefined) {
    throw new AppError('NOT_FOUND', 'metrics are off; METRICS_SCRAPE_TOKEN switches them on')
  }
  if (!sameSecret(bearer(call.header('authorization')) ?? '', metricsToken)) {
    throw new AppError('UNAUTHENTICATED', 'send `Authorization: Bearer` with the scrape token')
  }
  const content = await ctx.metrics.text()
  return { status: 200, text: { type: ctx.metrics.registry.contentType, content } }
}

const documents = new WeakMap<Context, string>()

/** Built when it is first asked for: only then is the table of routes, which holds this one, complete. */
async function documentOf(ctx: Context): Promise<string> {
  let document = documents.get(ctx)
  if (document === undefined) {
    const { routes } = await import('./index.ts')
    document = openapi(routes, { version: ctx.config.version, publicOrigin: ctx.publicOrigin })
    documents.set(ctx, document)
  }
  return document
}
