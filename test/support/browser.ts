// A headless Chromium of the machine, for tests of pages. Where there is none such a test says so and is
// skipped; with CI set it fails instead, so that it can't be skipped for ever.
import { accessSync, constants } from 'node:fs'
import { delimiter, join } from 'node:path'
import { chromium, type Browser, type Page } from 'playwright-core'

const names = ['chromium', 'chromium-browser', 'google-chrome', 'google-chrome-stable']

/** CHROMIUM in the environment, else the first in PATH; undefined when there is none. */
export const browserPath: string | undefined =
  process.env['CHROMIUM'] ??
  (process.env['PATH'] ?? '')
    .split(delimiter)
    .flatMap((folder) => names.map((name) => join(folder, name)))
    .find(isExecutable)

/** The option `skip` of a test that needs a browser. */
export const withoutBrowser: string | false =
  browserPath === undefined && !process.env['CI']
    ? 'needs Chromium: apt-get install chromium, or set CHROMIUM to its path'
    : false

export async function startBrowser(): Promise<Browser> {
  if (browserPath === undefined) throw new Error('there is no Chromium here')
  // Its sandbox does not work as root; what it opens here is ours alone.
  const args = process.getuid?.() === 0 ? ['--no-sandbox'] : []
  return chromium.launch({ executablePath: browserPath, args })
}

export interface Watched {
  page: Page
  /** Whatever the page complained about: refused by its policy, thrown, or logged as an error. */
  complaints: string[]
  /** Every address it asked for. */
  asked: string[]
}

/** Opens a page in a profile of its own and remembers what goes wrong in it. */
export async function openPage(browser: Browser, url: string): Promise<Watched> {
  const context = await browser.newContext()
  const page = await context.newPage()
  const watched: Watched = { page, complaints: [], asked: [] }
  page.on('pageerror', (error) => watched.complaints.push(String(error)))
  page.on('console', (message) => {
    if (message.type() === 'error') watched.complaints.push(message.text())
  })
  page.on('request', (request) => watched.asked.push(request.url()))
  await page.goto(url)
  return watched
}

function isExecutable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK)
    return true
  } catch {
    return false
  }
}
