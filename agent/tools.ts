// Runs the platform's small helper programs (ps, sw_vers, PowerShell), bounded in time and output.

import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { toolBytesMax, toolMsMax } from './limits.ts'

const execute = promisify(execFile)

/** What a program printed. Throws when it is missing, fails, hangs or prints without end. */
export async function runTool(file: string, args: string[]): Promise<string> {
  const options = { timeout: toolMsMax, maxBuffer: toolBytesMax, windowsHide: true }
  return (await execute(file, args, options)).stdout
}

/** The same, or an empty string where the program can't answer: for what is nice to know. */
export async function askTool(file: string, args: string[]): Promise<string> {
  try {
    return await runTool(file, args)
  } catch {
    return ''
  }
}

/** A PowerShell expression printed as JSON, or null. */
export async function askPowerShell(script: string): Promise<unknown> {
  const text = await askTool('powershell.exe', [
    '-NoProfile',
    '-NonInteractive',
    '-Command',
    script,
  ])
  try {
    return JSON.parse(text) as unknown
  } catch {
    return null
  }
}
