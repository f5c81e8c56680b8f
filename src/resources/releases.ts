// What agents are offered: the signed releases, and the binaries in them. Both are public: an agent that can't
// connect any more must still be able to get a newer one.
import { Type, type Static } from 'typebox'
import { selectBytes } from '../byte_range.ts'
import { AppError } from '../errors.ts'
import type { ReleaseFile } from '../release_manifest.ts'
import type { ProvedFile, ReleaseBinary } from '../release_folder.ts'
import { route, type Call, type Context, type Reply, type Route } from '../route.ts'
import { versionLengthMax, versionPattern } from '../versions.ts'
import { archNames, archWords, osNames, osWords } from './platforms.ts'

const base64 = (description: string) => Type.String({ description })

const File = Type.Object({
  name: Type.String(),
  os: Type.Enum(['linux', 'darwin', 'windows']),
  arch: Type.Enum(['amd64', 'arm64']),
  size: Type.Integer({ description: 'Bytes.' }),
  sha256: Type.String({ description: 'Hex.' }),
  signature: base64(
    'Ed25519, base64, over the lines muster-agent, version, os, arch, size and sha256, joined by \\n.',
  ),
  zst: Type.Union([Type.Object({ size: Type.Integer(), sha256: Type.String() }), Type.Null()], {
    description: 'The same file compressed with zstd; what it unpacks to is what is signed.',
  }),
})

const nullable = Type.Union([Type.String(), Type.Null()])

const Manifest = Type.Object({
  version: Type.String(),
  created: Type.String(),
  minimumVersion: Type.Union([Type.String(), Type.Null()], {
    description: 'An agent that saw this never installs a version below it again.',
  }),
  keyId: Type.String({ description: 'Of the key: the first 16 hex digits of its SHA-256.' }),
  files: Type.Array(File),
  signature: base64('Ed25519, base64, over all of the above.'),
  offered: Type.Literal(true),
})

const KeyList = Type.Object({
  created: Type.String(),
  keys: Type.Array(Type.String(), { description: 'The keys that count from now on, base64.' }),
  signatures: Type.Array(Type.Object({ keyId: Type.String(), signature: Type.String() })),
})

const Releases = Type.Object({
  data: Type.Array(Manifest, { description: 'What is offered, the highest version first.' }),
  refused: Type.Array(
    Type.Object({
      folder: Type.Union([Type.String(), Type.Null()], {
        description: 'Null for the folder of the keys.',
      }),
      file: nullable,
      code: Type.String(),
      message: Type.String(),
    }),
    { description: 'What lies in the folders and is not offered, and why.' },
  ),
  keyList: Type.Union([KeyList, Type.Null()], {
    description: 'Signed by a key that counted before; who pinned that one may go on with these.',
  }),
})

const downloadParams = Type.Object({ os: Type.Enum(osWords), arch: Type.Enum(archWords) })
const downloadQuery = Type.Object({
  version: Type.Optional(Type.String({ pattern: versionPattern, maxLength: versionLengthMax })),
  format: Type.Optional(Type.Enum(['zst'], { description: 'Compressed with zstd.' })),
})

type DownloadCall = Call<Static<typeof downloadParams>, Static<typeof downloadQuery>, undefined>

export const releaseRoutes: Route[] = [
  route({
    method: 'GET',
    path: '/agents/releases',
    name: 'listReleases',
    tag: 'agents',
    summary: 'The signed releases of the agent, what was refused and why, and the list of keys',
    may: 'public',
    responses: { 200: Releases },
    handle: ({ releases }) => {
      releases.requireKnown()
      return {
        status: 200,
        body: {
          data: releases.offered().map(({ manifest }) => ({ ...manifest, offered: true })),
          refused: releases.refused(),
          keyList: releases.keyList,
        },
      }
    },
  }),
  route({
    method: 'GET',
    path: '/agents/download/:os/:arch',
    name: 'downloadAgent',
    tag: 'agents',
    summary:
      'The binary of the agent: of a version, or the highest that is no pre-release. Ranges, ETag and HEAD work; X-Agent-Version, X-Checksum-Sha256 (of what is sent) and X-Signature-Ed25519 (of the binary) tell what it is.',
    may: 'public',
    params: downloadParams,
    query: downloadQuery,
    headers: ['if-none-match', 'if-range', 'range'],
    responses: { 200: null, 206: null, 304: null, 416: null },
    handle: download,
  }),
]

function download(ctx: Context, { params, query, header, ip }: DownloadCall): Reply {
  const platform = { os: osNames[params.os], arch: archNames[params.arch] }
  const { release, binary } = ctx.releases.require(platform, query.version)
  const packed = query.format === 'zst'
  const file = packed ? requirePacked(binary) : binary.plain
  const headers = headersOf(release.manifest.version, binary.file, file, packed)
  const conditions = {
    ifNoneMatch: header('if-none-match'),
    ifRange: header('if-range'),
    range: header('range'),
  }
  const selection = selectBytes(conditions, file.size, headers.ETag)
  const { status } = selection
  if (status === 304) return { status, headers }
  if (status === 416) {
    return { status, headers: { ...headers, 'Content-Range': `bytes */${file.size}` } }
  }
  const { begin, end } = selection
  const range = `bytes ${begin}-${end - 1}/${file.size}`
  return {
    status,
    bytes: {
      type: packed ? 'application/zstd' : 'application/octet-stream',
      length: end - begin,
      open: () => ctx.downloads.start(file, begin, end, ip),
    },
    headers: status === 206 ? { ...headers, 'Content-Range': range } : headers,
  }
}

function requirePacked({ file, zst }: ReleaseBinary): ProvedFile {
  if (zst !== null) return zst
  throw new AppError(
    'AGENT_BINARY_NOT_FOUND',
    `${file.name} was released without its compressed form; ask without format`,
  )
}

function headersOf(version: string, file: ReleaseFile, sent: ProvedFile, packed: boolean) {
  return {
    ETag: `"${sent.sha256}"`,
    'Accept-Ranges': 'bytes',
    // Kept, and asked about each time: the same address leads to the next version one day.
    'Cache-Control': 'no-cache',
    'Content-Disposition': `attachment; filename="${file.name}${packed ? '.zst' : ''}"`,
    'X-Agent-Version': version,
    'X-Checksum-Sha256': sent.sha256,
    // Of the file that is run: what a compressed one unpacks to.
    'X-Signature-Ed25519': file.signature,
  }
}
