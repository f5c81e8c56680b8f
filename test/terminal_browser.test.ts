// The page of a terminal as people use it, in Chromium, with the real agent and a real shell.
import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { tmpdir } from 'node:os'
import { after, before, test } from 'node:test'
import type { Browser, Page } from 'playwright-core'
import type { TerminalTable } from '../src/terminal_table.ts'
import { openPage, startBrowser, withoutBrowser, type Watched } from './support/browser.ts'
import { admin, startHub, type TestHub } from './support/hub.ts'
import { breakAgent, startAgentOf, type RunningAgent } from './support/real_agent.ts'
import { until } from './support/until.ts'

let hub: TestHub
let browser: Browser
let agent: RunningAgent

const options = { skip: withoutBrowser }

if (withoutBrowser === false) {
  before(async () => {
    hub = await startHub()
    agent = await startAgentOf(hub)
    browser = await startBrowser()
  })
  after(async () => {
    await browser.close()
    await agent.stop()
    await hub.close()
  })
}

async function opened(deviceId = agent.deviceId): Promise<Watched> {
  const watched = await openPage(browser, `${hub.origin}/terminal/${deviceId}`)
  const { page } = watched
  // The screen holds what fits; the page's own memory of it is read here, as scrolling would.
  await page.evaluate(`{
    const Terminal = globalThis.Terminal
    globalThis.Terminal = class extends Terminal {
      constructor(...rest) { super(...rest); globalThis.shown = this }
    }
  }`)
  await page.getByLabel('Email').fill(admin.email)
  await page.getByLabel('Password').fill(admin.password)
  await page.getByLabel('Password').press('Enter')
  return watched
}

async function connected(): Promise<Watched> {
  const watched = await opened()
  await state(watched.page, 'Connected')
  return watched
}

const state = (page: Page, text: string) =>
  page.locator('#state', { hasText: text }).waitFor({ timeout: 20_000 })

/** What stands on the screen, line by line. */
const lines = (page: Page) =>
  page
    .locator('.xterm-rows > div')
    .allInnerTexts()
    .then((rows) => rows.map((row) => row.replaceAll('\u00a0', ' ').trimEnd()))

const shows = (page: Page, pattern: RegExp) =>
  until(`the screen to show ${pattern}`, async () =>
    pattern.test((await lines(page)).join('\n')),
  ).catch(async (error: unknown) => {
    throw new Error(`it shows ${(await lines(page)).join('\n')}`, { cause: error })
  })

async function finish(page: Page): Promise<void> {
  await page.getByRole('button', { name: 'End' }).click()
  await state(page, 'Ended: the session was closed')
  await page.context().close()
}

test(
  'what is typed runs, what it prints is seen, under a policy without exceptions',
  options,
  async () => {
    const { page, complaints, asked } = await connected()
    await page.keyboard.type('echo $((6*7))-seen; printf "\\033[38;2;10;200;30mgreen\\033[0m\\n"\n')
    await shows(page, /^42-seen$/m)
    await shows(page, /^green$/m)
    const colour = await page
      .locator('.xterm-rows span', { hasText: /^green$/ })
      .last()
      .evaluate((span) => span.ownerDocument.defaultView?.getComputedStyle(span).color)
    assert.equal(colour, 'rgb(10, 200, 30)')
    const elsewhere = asked.filter(
      (url) => !url.startsWith(`${hub.origin}/`) && !url.startsWith('data:'),
    )
    assert.deepEqual(elsewhere, [])
    assert.ok(!asked.some((url) => url.includes('ticket')))
    assert.deepEqual(complaints, [])
    await page.keyboard.press('Shift+F6')
    const focused = () => page.evaluate('document.activeElement.id')
    assert.equal(await focused(), 'end')
    await finish(page)
  },
)

test('the shell is as large as the window, also when that changes', options, async () => {
  const { page } = await connected()
  const rows = () => page.locator('.xterm-rows > div').count()
  await page.keyboard.type('stty size\n')
  await shows(page, new RegExp(`^${await rows()} \\d+$`, 'm'))
  const many = await rows()
  await page.setViewportSize({ width: 700, height: 400 })
  await until('fewer rows', async () => (await rows()) < many)
  await page.keyboard.type('clear; stty size\n')
  await shows(page, new RegExp(`^${await rows()} \\d+$`, 'm'))
  await finish(page)
})

test('a full-screen program draws itself, moves, and gives the screen back', options, async () => {
  const { page } = await connected()
  await page.keyboard.type('echo shell-$((1+1)); seq 1 500 | less\n')
  await shows(page, /^1\n2\n3\n/)
  await page.keyboard.press('Space')
  await until('the next page', async () => Number((await lines(page))[0]) > 10)
  await page.keyboard.type('G')
  await shows(page, /^500\n\(END\)|^500\n/m)
  const many = (await lines(page)).length
  await page.setViewportSize({ width: 900, height: 400 })
  // It draws itself anew for the smaller window, with its prompt in the last line.
  await until('less in the new size', async () => {
    const now = await lines(page)
    return now.length < many && /^(:|\(END\))$/.test(now.at(-1) ?? '') && /^\d+$/.test(now[0] ?? '')
  })
  await page.keyboard.type('q')
  await shows(page, /shell-2/)
  await finish(page)
})

test('a paste of 100 KB arrives whole', options, async () => {
  const { page } = await connected()
  const text = Array.from({ length: 1700 }, (_, n) => `${n} ${'y'.repeat(56)}`).join('\n')
  assert.ok(text.length > 100_000)
  const file = `${tmpdir()}/muster-paste-${crypto.randomUUID()}`
  await page.keyboard.type(
    `stty -echo; echo now-$((1+1)); cat > ${file}; sha256sum < ${file}; rm ${file}\n`,
  )
  await shows(page, /now-2/)
  await page.evaluate(`(() => {
    const data = new DataTransfer()
    data.setData('text/plain', ${JSON.stringify(`${text}\n`)})
    document.querySelector('.xterm-helper-textarea')
      .dispatchEvent(new ClipboardEvent('paste', { clipboardData: data, bubbles: true }))
  })()`)
  await page.keyboard.press('Control+D')
  await shows(page, new RegExp(createHash('sha256').update(`${text}\n`).digest('hex').slice(0, 40)))
  await finish(page)
})

test(
  'sockets lost in mid-output cost nothing: the operator’s, then the agent’s',
  options,
  async () => {
    const { page } = await connected()
    // 1,000 lines fit the page's own memory, so all of them can be read back.
    await page.keyboard.type(
      'clear; for i in $(seq 1 1000); do echo "line $i"; sleep 0.002; done; echo all-$((1+1))\n',
    )
    await shows(page, /line \d\d\d/)
    dropOperator()
    await state(page, 'Connection lost')
    await state(page, 'Connected')
    breakAgent(hub, agent.deviceId)
    await shows(page, /all-2/)
    const buffer = await page.evaluate<string>(`{
    const { active } = shown.buffer
    Array.from({ length: active.length }, (_, n) => active.getLine(n).translateToString(true)).join('\\n')
  }`)
    const found = [...buffer.matchAll(/^line (\d+)$/gm)].map(([, n]) => Number(n))
    assert.deepEqual(
      found,
      Array.from({ length: 1000 }, (_, n) => n + 1),
    )
    await finish(page)
  },
)

test(
  'a device that is offline, and one that does not answer, are told in words',
  options,
  async () => {
    const off = await hub.enroll()
    const one = await opened(off.deviceId)
    await state(one.page, 'The device is offline')
    assert.equal(await one.page.getByRole('button', { name: 'Try again' }).count(), 1)
    await one.page.context().close()

    const { page } = await connected()
    process.kill(agent.pid, 'SIGSTOP')
    await page.keyboard.type('echo late-$((1+1))\n')
    await state(page, 'The device does not answer')
    process.kill(agent.pid, 'SIGCONT')
    await shows(page, /late-2/)
    // Nothing more is typed: the words go by themselves.
    await state(page, 'Connected')
    await page.keyboard.type('exit 5\n')
    await state(page, 'Ended: exit code 5')
    await page.getByRole('button', { name: 'Open a new terminal' }).click()
    await state(page, 'Connected')
    await finish(page)
  },
)

/** The operators' sockets break, as a network does it. */
function dropOperator(): void {
  const sessions = Reflect.get(hub.hub.ctx.terminals, 'sessions') as TerminalTable
  for (const session of sessions.values()) session.operator?.close(1012, 'test')
}
