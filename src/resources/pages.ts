// The pages for browsers: accepting an invitation, and the API reference. Nothing comes from elsewhere;
// each page's policy lets run what the page itself holds, and no more. Files are read when first asked for.
import { createHash } from 'node:crypto'
import { readFile, stat } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { gzip } from 'node:zlib'
import { Type } from 'typebox'
import { AppError } from '../errors.ts'
import { limits } from '../limits.ts'
import { once } from '../once.ts'
import { route, type Call, type Reply, type Route } from '../route.ts'

const conditional = ['accept-encoding', 'if-none-match']

export const pageRoutes: Route[] = [
  route({
    method: 'GET',
    path: '/accept-invite',
    at: 'origin',
    name: 'acceptInvitePage',
    tag: 'pages',
    summary: 'The page behind an invitation: sets the password with the token in the fragment.',
    may: 'public',
    headers: conditional,
    responses: { 200: null, 304: null },
    handle: async (_ctx, call) => answer(call, await acceptInvite()),
  }),
  route({
    method: 'GET',
    path: '/docs',
    at: 'origin',
    name: 'docsPage',
    tag: 'pages',
    summary: 'This document as a page to read and try.',
    may: 'public',
    headers: conditional,
    responses: { 200: null, 304: null },
    handle: async (_ctx, call) => answer(call, await docs()),
  }),
  route({
    method: 'GET',
    path: '/docs/:file',
    at: 'origin',
    name: 'docsFile',
    tag: 'pages',
    summary: 'Script and style of the reference page.',
    may: 'public',
    params: Type.Object({ file: Type.String() }),
    headers: conditional,
    responses: { 200: null, 304: null },
    handle: docsFile,
  }),
]

/** A file as it is served. */
interface Asset {
  type: string
  bytes: Buffer
  gzipped: Buffer
  etag: string
  policy: string
}

const html = 'text/html; charset=utf-8'
const nowhere = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

const acceptInvite = once(() => readPage('accept_invite.html', []))
const docs = once(() => readPage('docs.html', ["'self'"]))

/** The names that are served: a name from a path never becomes a path. */
const docsFiles = new Map([
  ['swagger-ui.css', once(() => readSwagger('swagger-ui.css', 'text/css; charset=utf-8'))],
  ['swagger-ui-bundle.js', once(() => readSwagger('swagger-ui-bundle.js', 'text/javascript'))],
])

async function docsFile(
  _ctx: unknown,
  call: Call<{ file: string }, undefined, undefined>,
): Promise<Reply> {
  const file = docsFiles.get(call.params.file)
  if (file) return answer(call, await file())
  throw new AppError('NOT_FOUND', 'the reference page has no such file')
}

function answer({ header }: Pick<Call<unknown, unknown, unknown>, 'header'>, asset: Asset): Reply {
  const headers = {
    ETag: asset.etag,
    Vary: 'Accept-Encoding',
    // Kept, and asked about each time: an upgrade of the hub shows at once.
    'Cache-Control': 'no-cache',
    'Content-Security-Policy': asset.policy,
  }
  const known = header('if-none-match').split(/\s*,\s*/)
  if (known.some((tag) => tag.replace(/^W\//, '') === asset.etag)) return { status: 304, headers }
  if (!/\bgzip\b(?!\s*;\s*q=0(\.0*)?\s*(,|$))/.test(header('accept-encoding'))) {
    return { status: 200, text: { type: asset.type, content: asset.bytes }, headers }
  }
  return {
    status: 200,
    text: { type: asset.type, content: asset.gzipped },
    headers: { ...headers, 'Content-Encoding': 'gzip' },
  }
}

// ---- files -----------------------------------------------------------------------------------

/** A page of ours. Its own script and style are allowed by their hashes, `beside` allows files with them. */
async function readPage(name: string, beside: readonly string[]): Promise<Asset> {
  const bytes = await readBounded(fileURLToPath(new URL(`../../pages/${name}`, import.meta.url)))
  const text = bytes.toString()
  const sources = (tag: string) => [...beside, ...hashesOf(text, tag)].join(' ')
  // Images as data: Swagger UI's style holds its own so, and our icon is an empty one.
  const more = `img-src data:; connect-src 'self'`
  const policy = `${nowhere}; script-src ${sources('script')}; style-src ${sources('style')}; ${more}`
  return assetOf(bytes, html, policy)
}

/** What stands between every `<tag>` and its end, as a policy names it. */
function hashesOf(page: string, tag: string): string[] {
  const inline = page.matchAll(new RegExp(`<${tag}>([^]*?)</${tag}>`, 'g'))
  return [...inline].map(
    ([, content]) => `'sha256-${createHash('sha256').update(`${content}`).digest('base64')}'`,
  )
}

async function readSwagger(name: string, type: string): Promise<Asset> {
  const path = createRequire(import.meta.url).resolve(`swagger-ui-dist/${name}`)
  return assetOf(await readBounded(path), type, nowhere)
}

async function readBounded(path: string): Promise<Buffer> {
  const { size } = await stat(path)
  if (size > limits.assetBytesMax) throw new Error(`${path} has ${size} bytes: too many to serve`)
  return readFile(path)
}

async function assetOf(bytes: Buffer, type: string, policy: string): Promise<Asset> {
  const gzipped = await promisify(gzip)(bytes)
  const etag = `"${createHash('sha256').update(bytes).digest('base64url').slice(0, 22)}"`
  return { type, bytes, gzipped, etag, policy }
}
