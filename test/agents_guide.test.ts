// docs/agents.md beside the frames of terminals, which a client of somebody's own is written by.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { limits } from '../src/limits.ts'
import { closeCodes } from '../src/protocol.ts'
import {
  dataBytesMax,
  frameHeaderBytes,
  frameKinds,
  sizeMax,
  terminalIdChars,
  terminalSubprotocol,
  textBytesMax,
  ticketSubprotocol,
  windowBytes,
} from '../src/terminal_frames.ts'

const guide = readFileSync(join(import.meta.dirname, '..', 'docs', 'agents.md'), 'utf8')
const [, section = ''] = /^## Terminals, [^\n]*\n(.*?)^## /ms.exec(guide) ?? []

test('every kind of frame is there under its number, and no other', () => {
  const rows = [...section.matchAll(/^\| (\d+) \| `(\w+)` \|/gm)]
  const kinds = rows.map(([, number, kind]) => [kind, Number(number)])
  assert.deepEqual(kinds, Object.entries(frameKinds))
})

test('lengths, bounds, names and codes are those of the code', () => {
  for (const said of [
    `| 1–${terminalIdChars} | the session's id`,
    `| ${terminalIdChars + 1}–${frameHeaderBytes - 1} | sequence`,
    `| ${frameHeaderBytes}– | body, ${dataBytesMax / 1024} KiB at most`,
    `2 bytes each, 1 to ${sizeMax};`,
    `up to ${textBytesMax} bytes`,
    `no more than ${windowBytes / 1024} KiB unacknowledged`,
    `within ${limits.ticketSeconds} s`,
    `within ${limits.terminalAbsenceSeconds / 60} minutes`,
    `\`${terminalSubprotocol}\` and \`${ticketSubprotocol}TICKET\``,
    `${limits.terminalFramesPerMinute.toLocaleString('en')} a minute (${limits.terminalFramesBurst.toLocaleString('en')} at once)`,
    `${closeCodes.superseded} when it was opened elsewhere`,
    `${closeCodes.rateLimited} for too much at once`,
    `${closeCodes.restart} when the hub stops`,
  ]) {
    assert.ok(section.includes(said), said)
  }
})
