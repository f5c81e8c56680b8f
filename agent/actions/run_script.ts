// run_script: a script as a private file in the state folder, its parameters as environment variables.

import { rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { PayloadError, requireText } from '../action.ts'
import type { Action, Payload } from '../action.ts'
import { runProgram } from '../child.ts'
import type { Program } from '../child.ts'
import { makePrivateFolder } from '../files.ts'
import { findProgram } from '../programs.ts'

interface Language {
  extension: string
  /** The first of these that is installed runs the file. */
  programs: string[]
  args: (path: string) => string[]
  verbatim?: boolean
}

const powerShellFile = (path: string) => [
  '-NoProfile',
  '-NonInteractive',
  '-ExecutionPolicy',
  'Bypass',
  '-File',
  path,
]

const languages: Record<string, Language> = {
  sh: { extension: 'sh', programs: ['sh'], args: (path) => [path] },
  bash: { extension: 'sh', programs: ['bash'], args: (path) => [path] },
  powershell: { extension: 'ps1', programs: ['powershell', 'pwsh'], args: powerShellFile },
  cmd: {
    extension: 'cmd',
    programs: ['cmd.exe'],
    args: (path) => ['/d', '/s', '/c', `"${path}"`],
    verbatim: true,
  },
  python: { extension: 'py', programs: ['python3', 'python'], args: (path) => [path] },
  node: { extension: 'mjs', programs: ['node'], args: (path) => [path] },
}

export const runScript: Action = {
  concurrent: false,
  repeatable: false,
  async run(payload, context) {
    const language = requireLanguage(payload)
    const env = requireEnv(payload)
    const content = requireText(payload, 'content')
    const file = requireProgram(language)
    makePrivateFolder(context.state.scripts)
    const path = join(context.state.scripts, `${context.id}.${language.extension}`)
    writeFileSync(path, content, { mode: 0o700 })
    try {
      const program: Program = { file, args: language.args(path), env }
      if (language.verbatim) program.verbatim = true
      return await runProgram(program, context)
    } finally {
      rmSync(path, { force: true })
    }
  },
}

function requireLanguage(payload: Payload): Language {
  const name = payload['language']
  const language =
    typeof name === 'string' && Object.hasOwn(languages, name) ? languages[name] : undefined
  if (language) return language
  throw new PayloadError(`payload: language must be one of ${Object.keys(languages).join(', ')}`)
}

function requireProgram(language: Language): string {
  for (const name of language.programs) {
    const path = findProgram(name)
    if (path) return path
  }
  throw new PayloadError(`${language.programs.join(' or ')} is not installed on this device`)
}

// Checked here because the error of a failed spawn would quote the value, which may be a secret.
function requireEnv(payload: Payload): Record<string, string> {
  const env = payload['env'] ?? {}
  if (typeof env !== 'object' || env === null)
    throw new PayloadError('payload: env must be an object')
  for (const [name, value] of Object.entries(env)) {
    if (!/^[A-Za-z_]\w*$/.test(name)) {
      throw new PayloadError(`payload: env has a name that no shell can read: "${name}"`)
    }
    if (typeof value !== 'string' || value.includes('\0')) {
      throw new PayloadError(`payload: env ${name} must be a string without U+0000`)
    }
  }
  return env as Record<string, string> // every member was just checked
}
