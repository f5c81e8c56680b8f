// The pages for browsers: accepting an invitation, the API reference, and terminals. Nothing comes from elsewhere;
// each page's policy lets run what the page itself holds, and no more. Files are read when first asked for.
import { createHash } from 'node:crypto'
import { readFile, stat } from 'node:fs/promises'
import { createRequire, stripTypeScriptTypes } from 'node:module'
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
    handle: (_ctx, call) => answerFile(call, docsFiles),
  }),
  route({
    method: 'GET',
    path: '/terminal/:deviceId',
    at: 'origin',
    name: 'terminalPage',
    tag: 'pages',
    summary: 'A terminal of the device in the browser, after signing in.',
    may: 'public',
    params: Type.Object({ deviceId: Type.String() }),
    headers: conditional,
    responses: { 200: null, 304: null },
    handle: async (_ctx, call) => answer(call, await terminal()),
  }),
  route({
    method: 'GET',
    path: '/terminal/files/:file',
    at: 'origin',
    name: 'terminalFile',
    tag: 'pages',
    summary: 'Scripts and style of the terminal page.',
    may: 'public',
    params: Type.Object({ file: Type.String() }),
    headers: conditional,
    responses: { 200: null, 304: null },
    handle: (_ctx, call) => answerFile(call, terminalFiles),
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
  [
    'swagger-ui.css',
    once(() => readPackage('swagger-ui-dist/swagger-ui.css', 'text/css; charset=utf-8')),
  ],
  [
    'swagger-ui-bundle.js',
    once(() => readPackage('swagger-ui-dist/swagger-ui-bundle.js', 'text/javascript')),
  ],
])

const terminal = once(() => readPage('terminal.html', ["'self'"]))
const script = 'text/javascript; charset=utf-8'

const terminalFiles = new Map([
  ['xterm.js', once(() => readPackage('@xterm/xterm/lib/xterm.js', script))],
  ['xterm.css', once(() => readPackage('@xterm/xterm/css/xterm.css', 'text/css; charset=utf-8'))],
  ['addon-fit.js', once(() => readPackage('@xterm/addon-fit/lib/addon-fit.js', script))],
  ...['terminal.js', 'api.js', 'styles.js'].map(
    (name) => [name, once(() => readOwn(name))] as const,
  ),
  // What hub and agent load, too: one truth for all three.
  ...['terminal_client.ts', 'terminal_streams.ts', 'terminal_frames.ts'].map(
    (name) => [name, once(() => readStripped(name))] as const,
  ),
])

type Files = ReadonlyMap<string, () => Promise<Asset>>

async function answerFile(
  call: Call<{ file: string }, undefined, undefined>,
  files: Files,
): Promise<Reply> {
  const file = files.get(call.params.file)
  if (file) return answer(call, await file())
  throw new AppError('NOT_FOUND', 'the page has no such file')
}

function answer({ header }: Pick<Call<unknown, unknown, unknown>, 'header'>, asset: Asset): Reply {
  const headers = {
    ETag: asset.etag,
    Vary: 'Accept-Encoding',
    // Kept, and asked about each time: an upgrade of the hub shows at once.
    'Cache-Control': 'no-cache',
    'Content-Security-Policy': asset.policy,
  }
  const known = header('if-none-match').split(',')
  if (known.some((tag) => tag.trim().replace(/^W\//, '') === asset.etag))
    return { status: 304, headers }
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

async function readPackage(name: string, type: string): Promise<Asset> {
  const path = createRequire(import.meta.url).resolve(name)
  return assetOf(await readBounded(path), type, nowhere)
}

async function readOwn(name: string): Promise<Asset> {
  const path = fileURLToPath(new URL(`../../pages/${name}`, import.meta.url))
  return assetOf(await readBounded(path), script, nowhere)
}

/** A file of ours without its types, as Node itself runs it. */
async function readStripped(name: string): Promise<Asset> {
  const path = fileURLToPath(new URL(`../${name}`, import.meta.url))
  const text = (await readBounded(path)).toString()
  return assetOf(Buffer.from(quietly(() => stripTypeScriptTypes(text))), script, nowhere)
}

/** Node says once that stripping by hand is experimental; it does the same to run this file. */
function quietly<T>(work: () => T): T {
  const emitWarning = process.emitWarning.bind(process)
  process.emitWarning = () => {}
  try {
    return work()
  } finally {
    process.emitWarning = emitWarning
  }
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
