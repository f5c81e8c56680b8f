// The command line: arguments in, one command called, an exit code out. No stack trace reaches a
// person for a failure that was expected.

import { resolve } from 'node:path'
import { parseArgs } from 'node:util'
import type { ParseArgsConfig } from 'node:util'
import { parseHubUrl } from './address.ts'
import { enroll } from './enroll.ts'
import type { EnrollOptions } from './enroll.ts'
import { AgentError, describe, errorCode, exitCodes, isSystemError } from './errors.ts'
import type { ExitCode } from './errors.ts'
import { imageStateDir, imageUnit, installBelow, requireRoot, uninstallBelow } from './image.ts'
import { install, uninstall, unitOf } from './install.ts'
import { isCompiled } from './programs.ts'
import { run } from './run.ts'
import { defaultStateDir, stateAt } from './state.ts'
import type { State } from './state.ts'
import { printStatus } from './status.ts'
import { supervise } from './supervise.ts'
import { agentVersion } from './version.ts'

const help = `muster-agent ${agentVersion}: the agent of a Muster device

Usage:
  muster-agent enroll --url ORIGIN --secret SECRET|- [--site SITE_ID] [--state DIR] [--insecure]
      Enrolls this device with the hub at ORIGIN (https://hub.example.com, with or without
      /api/v1). With "-" the secret is read from standard input; it is never kept.
      --site SITE_ID  the site to join; a site's own key implies it
      --insecure      allow plain http to a host other than this one
  muster-agent run [--supervised] [--state DIR]
      Connects to the hub and stays. Prints JSON log lines. SIGTERM or SIGINT ends it.
      --supervised    start the agent again when it ends unexpectedly
  muster-agent install [--url ORIGIN --secret SECRET|- …] [--state DIR] [--root DIR] [--print]
      Makes the agent a service of systemd and starts it; enrolls where --url is given.
      --root DIR      put program and service into another system's root, as of an image; it
                      takes no --url: each device enrolls on its first start
      --print         only print the unit
  muster-agent uninstall [--purge] [--state DIR] [--root DIR]
      Stops and removes the service.
      --purge         remove the identity and the program too
      --root DIR      only what lies below another system's root, as of an image
  muster-agent status [--json] [--state DIR]
      Shows who this device is, whether the agent runs and whether it is connected.
  muster-agent version
      Prints the version alone.
  muster-agent help
      Prints this text.

  --state DIR         the state folder, ${defaultStateDir()} when not given

Exit codes: 0 done, 1 failure, 2 wrong usage, 3 the device was decommissioned.
`

type CommandName = 'enroll' | 'run' | 'install' | 'uninstall' | 'status' | 'version' | 'help'
type Flags = Record<string, string | boolean | undefined>

/** Those of `install` that only enrolling reads. */
const enrollNames = ['url', 'secret', 'site', 'insecure']

const enrollFlags = {
  url: { type: 'string' },
  secret: { type: 'string' },
  site: { type: 'string' },
  state: { type: 'string' },
  insecure: { type: 'boolean' },
} as const

const flagsOf: Record<CommandName, NonNullable<ParseArgsConfig['options']>> = {
  enroll: enrollFlags,
  install: { ...enrollFlags, root: { type: 'string' }, print: { type: 'boolean' } },
  uninstall: { purge: { type: 'boolean' }, state: { type: 'string' }, root: { type: 'string' } },
  run: { supervised: { type: 'boolean' }, state: { type: 'string' } },
  status: { json: { type: 'boolean' }, state: { type: 'string' } },
  version: {},
  help: {},
}

process.stdout.on('error', ignoreClosedPipe)
process.exitCode = await main(process.argv.slice(2))
// What a broken hub or a stuck child still holds open must not keep a stopped agent alive.
if (process.argv[2] === 'run') process.exit()

async function main(args: string[]): Promise<ExitCode> {
  try {
    return await dispatch(args)
  } catch (error) {
    // A refusal of the system (no space, no permission) is a sentence too; anything else is our bug.
    if (!(error instanceof AgentError) && !isSystemError(error)) throw error
    const code = error instanceof AgentError ? error.exitCode : exitCodes.failure
    const hint = code === exitCodes.usage ? ' (see "muster-agent help")' : ''
    process.stderr.write(`muster-agent: ${describe(error)}${hint}\n`)
    return code
  }
}

async function dispatch([name, ...rest]: string[]): Promise<ExitCode> {
  if (name === undefined)
    throw usage('a command is missing: enroll, run, install, uninstall, status or version')
  if (name === '--version') return printLine(agentVersion)
  if (['help', '--help', '-h'].includes(name) || rest.includes('--help'))
    return printLine(help.trim())
  if (!isCommand(name)) throw usage(`"${name}" is no command`)
  const flags = parseFlags(name, rest)
  switch (name) {
    case 'enroll':
      return runEnroll(flags)
    case 'run':
      return flags['supervised'] ? supervise(stateOf(flags)) : run(stateOf(flags))
    case 'install':
      return runInstall(flags)
    case 'uninstall':
      return runUninstall(flags)
    case 'status':
      return printStatus(stateOf(flags), flags['json'] === true)
    case 'version':
      return printLine(agentVersion)
    case 'help':
      return printLine(help.trim())
  }
}

async function runInstall(flags: Flags): Promise<ExitCode> {
  const root = optional(flags, 'root')
  if (root !== undefined) return runInstallBelow(flags, root)
  const state = stateOf(flags)
  if (flags['print'] === true) return printLine(unitOf(state).trimEnd())
  const enrolls = enrollNames.some((name) => flags[name] !== undefined)
  const options = enrolls ? enrollmentOf(flags) : undefined
  const begin = options && (async () => enroll({ ...options, secret: await secretOf(options) }))
  return printLine(await install(state, begin))
}

function runInstallBelow(flags: Flags, root: string): ExitCode {
  const state = imageStateOf(flags)
  if (flags['print'] === true) return printLine(imageUnit(state).trimEnd())
  const name = enrollNames.find((one) => flags[one] !== undefined)
  if (name !== undefined) {
    throw usage(
      `--${name} with --root: every device of an image would have one identity; leave it out, and enroll each on its first start`,
    )
  }
  return printLine(installBelow(requireRoot(root), state))
}

async function runUninstall(flags: Flags): Promise<ExitCode> {
  const root = optional(flags, 'root')
  const purge = flags['purge'] === true
  if (root === undefined) return printLine(await uninstall(stateOf(flags), purge))
  return printLine(uninstallBelow(requireRoot(root), imageStateOf(flags), purge))
}

async function runEnroll(flags: Flags): Promise<ExitCode> {
  const state = stateOf(flags)
  const options = enrollmentOf(flags)
  const identity = await enroll({ ...options, secret: await secretOf(options) })
  const stateFlag = flags['state'] === undefined ? '' : ` --state ${state.dir}`
  return printLine(
    `Enrolled as device ${identity.deviceId} of site ${identity.siteId}.\n` +
      `The identity is in ${state.dir}; the secret was not kept.\n` +
      `Next: ${isCompiled() ? 'muster-agent run --supervised' : 'npm run -s agent -- run'}${stateFlag}`,
  )
}

/** What to enroll with; a secret that is to be read is still "-". */
function enrollmentOf(flags: Flags): EnrollOptions {
  const hubUrl = parseHubUrl(required(flags, 'url'), flags['insecure'] === true)
  const secret = required(flags, 'secret')
  return { hubUrl, secret, siteId: optional(flags, 'site'), state: stateOf(flags) }
}

async function secretOf({ secret }: EnrollOptions): Promise<string> {
  return secret === '-' ? readSecret() : secret
}

async function readSecret(): Promise<string> {
  const chunks: Buffer[] = []
  for await (const chunk of process.stdin) chunks.push(chunk as Buffer)
  const secret = Buffer.concat(chunks)
    .toString('utf8')
    .replace(/\r?\n$/, '')
  if (secret === '') throw usage('--secret - found no secret on standard input')
  return secret
}

function parseFlags(name: CommandName, args: string[]): Flags {
  try {
    const options = flagsOf[name]
    // No flag is repeatable, so a value is never a list.
    return parseArgs({ args, options, strict: true, allowPositionals: false }).values as Flags
  } catch (error) {
    // parseArgs names the flag in its first sentence; what follows is advice about parsing.
    throw usage(`${name}: ${describe(error).split('. ')[0]}`)
  }
}

function required(flags: Flags, name: string): string {
  const value = optional(flags, name)
  if (value === undefined) throw usage(`--${name} is missing`)
  return value
}

function optional(flags: Flags, name: string): string | undefined {
  const value = flags[name]
  if (value === '') throw usage(`--${name} is empty`)
  return typeof value === 'string' ? value : undefined
}

function stateOf(flags: Flags): State {
  return stateAt(optional(flags, 'state') ?? defaultStateDir())
}

// The paths of an image begin at its own root, whoever makes it and wherever.
function imageStateOf(flags: Flags): State {
  return stateAt(resolve('/', optional(flags, 'state') ?? imageStateDir))
}

function isCommand(name: string): name is CommandName {
  return Object.hasOwn(flagsOf, name)
}

function usage(message: string): AgentError {
  return new AgentError(message, exitCodes.usage)
}

function printLine(text: string): ExitCode {
  process.stdout.write(`${text}\n`)
  return exitCodes.ok
}

// Whoever read our output went away; that is no reason to stop managing the device.
function ignoreClosedPipe(error: Error): void {
  if (errorCode(error) !== 'EPIPE') throw error
}
