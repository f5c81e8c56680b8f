// Builds the agent into one executable per platform: the source that `npm run agent` runs, and Bun around it.
import { execFile } from 'node:child_process'
import { chmod, mkdir, mkdtemp, rename, rm } from 'node:fs/promises'
import { join, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import type { Platform } from '../../src/executable.ts'
import { agentFileName } from '../../src/release_manifest.ts'
import { archName, osName } from '../../agent/platform.ts'
import { bunProgram } from './bun.ts'
import { platformOfFile } from './files.ts'
import { nameOf, targetOf, type Target } from './platforms.ts'
import { Refusal } from './refusal.ts'

const run = promisify(execFile)
const main = fileURLToPath(new URL('../../agent/main.ts', import.meta.url))

export interface Build {
  version: string
  platform: Platform
  /** The folder that the executable is put into; made when it is not there. */
  out: string
  /** Public keys that are compiled in, base64 of 32 bytes each. */
  keys?: readonly string[]
  /** More constants of the source, name → value. */
  defines?: Record<string, unknown>
  /** Told what takes long. */
  say?: (line: string) => void
}

/** Builds one executable and returns its path. Throws Refusal. */
export async function buildAgent(build: Build): Promise<string> {
  const say = build.say ?? (() => {})
  const target = requireTarget(build.platform)
  // The Bun of this machine compiles; that of the platform is what comes out, with the agent in it.
  const compiler = await bunProgram(requireTarget(thisPlatform()).bun, say)
  const runtime = await bunProgram(target.bun, say)
  const name = agentFileName(build.version, build.platform)
  // Bun works in a folder of its own.
  const out = resolve(build.out)
  await mkdir(out, { recursive: true })
  const draft = await mkdtemp(join(out, '.draft-'))
  try {
    const file = join(draft, name)
    await compile(compiler, runtime, target, build, file, draft)
    await requirePlatform(file, build.platform)
    await chmod(file, 0o755)
    await rename(file, join(out, name))
  } finally {
    await rm(draft, { recursive: true, force: true })
  }
  return join(out, name)
}

async function compile(
  compiler: string,
  runtime: string,
  { target }: Target,
  { version, keys = [], defines = {} }: Build,
  file: string,
  cwd: string,
): Promise<void> {
  const constants = { MUSTER_AGENT_VERSION: version, MUSTER_RELEASE_KEYS: keys, ...defines }
  const args = [
    'build',
    '--compile',
    `--target=${target}`,
    `--compile-executable-path=${runtime}`,
    // What lies in the folder an agent is started from must not change how it runs.
    '--no-compile-autoload-dotenv',
    '--no-compile-autoload-bunfig',
    // Node's terminal; Bun brings its own. Which packages a checkout has must not change what comes out.
    '--external=@lydell/node-pty',
    // Without this stacks in a log name nothing; of the size it is nothing.
    '--keep-names',
    ...Object.entries(constants).flatMap(([name, value]) => [
      '--define',
      `${name}=${JSON.stringify(value)}`,
    ]),
    `--outfile=${file}`,
    main,
  ]
  try {
    // Bun leaves drafts in its working folder; this one goes.
    await run(compiler, args, { cwd, env: { ...process.env, BUN_BE_BUN: undefined } })
  } catch (error) {
    const text = error instanceof Error ? error.message : String(error)
    throw new Refusal(`Bun could not build the agent for ${target}: ${text}`)
  }
}

async function requirePlatform(file: string, wanted: Platform): Promise<void> {
  const found = await platformOfFile(file)
  if (found && nameOf(found) === nameOf(wanted)) return
  throw new Refusal(`Bun built ${found ? nameOf(found) : 'no executable'} for ${nameOf(wanted)}`)
}

/** The platform that this process runs on. */
export function thisPlatform(): Platform {
  return { os: osName(), arch: archName() }
}

function requireTarget(platform: Platform): Target {
  const target = targetOf(platform)
  if (target === undefined) throw new Refusal(`no agent is built for ${nameOf(platform)}`)
  return target
}
