// The pages as people meet them, in Chromium, under the policies that the hub sends.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import type { Browser, Page } from 'playwright-core'
import { openPage, startBrowser, withoutBrowser } from './support/browser.ts'
import { admin, startHub, type TestHub } from './support/hub.ts'

let hub: TestHub
let browser: Browser

const options = { skip: withoutBrowser }
const password = 'correct horse battery'

if (withoutBrowser === false) {
  before(async () => {
    hub = await startHub()
    browser = await startBrowser()
  })
  after(async () => {
    await browser.close()
    await hub.close()
  })
}

/** Invites a viewer; returns the link as the hub under test serves it. */
async function invited(): Promise<{ email: string; link: string }> {
  const email = `${crypto.randomUUID()}@example.org`
  const { data } = (await hub.get('/organizations')).body
  const answer = await hub.post('/users/invite', { email, role: 'viewer', orgId: data[0].id })
  assert.equal(answer.status, 201, answer.text)
  const { pathname, hash } = new URL(answer.body.inviteUrl)
  return { email, link: `${hub.origin}${pathname}${hash}` }
}

const fromElsewhere = (asked: string[]) =>
  asked.filter((url) => !url.startsWith(`${hub.origin}/`) && !url.startsWith('data:'))

test('the reference page lists every operation, and signs in', options, async () => {
  const { page, complaints, asked } = await openPage(browser, `${hub.origin}/docs`)
  await page.locator('.opblock').first().waitFor()
  const document = (await hub.get('/openapi.json')).body
  const methods = ['get', 'post', 'patch', 'delete', 'put']
  const expected = Object.entries<Record<string, unknown>>(document.paths)
    .flatMap(([path, item]) =>
      methods.filter((name) => item[name]).map((method) => `${method.toUpperCase()} ${path}`),
    )
    .toSorted()
  const listed = await page.locator('.opblock-summary').evaluateAll((blocks) =>
    blocks.map((block) => {
      const method = block.querySelector('.opblock-summary-method')?.textContent
      const path = block.querySelector('[data-path]')?.getAttribute('data-path')
      return `${method} ${path}`
    }),
  )
  assert.deepEqual(listed.toSorted(), expected)

  await page.locator('#operations-session-login .opblock-summary').click()
  const login = page.locator('#operations-session-login')
  await login.locator('textarea.body-param__text').fill(JSON.stringify(admin))
  await login.locator('button.execute').click()
  const answer = login.locator('.live-responses-table')
  await answer.waitFor()
  assert.equal((await answer.locator('tbody td.response-col_status').innerText()).trim(), '200')
  assert.match(await answer.innerText(), /"accessToken"/)
  assert.deepEqual(fromElsewhere(asked), [])
  assert.deepEqual(complaints, [])
  await page.context().close()
})

test('an invited person opens the link, sets a password and signs in', options, async () => {
  const { email, link } = await invited()
  const { page, complaints, asked } = await openPage(browser, link)
  // The token leaves the address at once, and never travels in one.
  assert.equal(page.url(), `${hub.origin}/accept-invite`)
  assert.ok(!asked.some((url) => url.includes('token=')))
  const problem = page.getByRole('alert')
  const submit = () => page.getByRole('button', { name: 'Set password' }).click()

  await page.getByLabel('Password 12 to 256 characters').fill('short')
  await submit()
  assert.equal(await problem.innerText(), 'The password needs at least 12 characters.')
  await page.getByLabel('Password 12 to 256 characters').fill(password)
  await page.getByLabel('Password, once more').fill(`${password}!`)
  await submit()
  assert.equal(await problem.innerText(), 'The two passwords are not the same.')
  await page.getByLabel('Password, once more').fill(password)
  await page.getByLabel('Name').fill('Ann Example')
  await submit()
  await page.getByRole('heading', { name: 'Your password is set' }).waitFor()
  assert.ok((await page.locator('#text').innerText()).includes(email))
  assert.deepEqual(fromElsewhere(asked), [])
  assert.deepEqual(complaints, [])

  const token = await hub.signIn(email, password)
  assert.equal((await hub.get('/auth/me', { token })).body.name, 'Ann Example')
  await page.getByRole('link', { name: 'Open the API reference' }).click()
  await page.locator('.opblock').first().waitFor()
  await page.context().close()
})

test('a used link says so, an incomplete one too, and a newer one works', options, async () => {
  const { email, link } = await invited()
  const first = await openPage(browser, link)
  const again = await hub.post('/users/invite', {
    email,
    role: 'viewer',
    orgId: (await hub.get('/organizations')).body.data[0].id,
  })
  const fill = async () => {
    await first.page.getByLabel('Password 12 to 256 characters').fill(password)
    await first.page.getByLabel('Password, once more').fill(password)
    await first.page.getByRole('button', { name: 'Set password' }).click()
  }
  await fill()
  await first.page.getByRole('heading', { name: 'does not work any more' }).waitFor()
  // The newer link, opened in the same tab: only the fragment changes.
  await first.page.goto(`${hub.origin}/accept-invite${new URL(again.body.inviteUrl).hash}`)
  await first.page.getByRole('button', { name: 'Set password' }).waitFor()
  await fill()
  await first.page.getByRole('heading', { name: 'Your password is set' }).waitFor()
  await first.page.context().close()

  const incomplete = await openPage(browser, `${hub.origin}/accept-invite`)
  await incomplete.page.getByRole('heading', { name: 'not complete' }).waitFor()
  assert.equal(await incomplete.page.getByRole('button').count(), 0)
  await incomplete.page.context().close()
})

test('a hub that is away is told, and the form stays', options, async () => {
  const { page } = await openPage(browser, (await invited()).link)
  await page.getByLabel('Password 12 to 256 characters').fill(password)
  await page.getByLabel('Password, once more').fill(password)
  await page.context().setOffline(true)
  const submit = page.getByRole('button', { name: 'Set password' })
  await submit.click()
  await page.getByText('The hub can’t be reached').waitFor()
  await page.context().setOffline(false)
  await submit.click()
  await page.getByRole('heading', { name: 'Your password is set' }).waitFor()
  await page.context().close()
})

for (const colorScheme of ['light', 'dark'] as const) {
  test(`the page of an invitation is legible in the ${colorScheme}`, options, async () => {
    const { page } = await openPage(browser, (await invited()).link)
    await page.emulateMedia({ colorScheme })
    const card = (await coloursOf(page, 'main')).back
    const button = await coloursOf(page, 'button')
    const contrasts = [contrast(button.text, button.back)]
    for (const selector of ['h1', 'small', '#problem', 'a']) {
      contrasts.push(contrast((await coloursOf(page, selector)).text, card))
    }
    // 4.5: what WCAG 2 asks of text at level AA.
    assert.ok(Math.min(...contrasts) >= 4.5, String(contrasts))
    await page.context().close()
  })
}

function coloursOf(page: Page, selector: string): Promise<{ text: string; back: string }> {
  return page
    .locator(selector)
    .first()
    .evaluate((element) => {
      const style = element.ownerDocument.defaultView?.getComputedStyle(element)
      return { text: style?.color ?? '', back: style?.backgroundColor ?? '' }
    })
}

/** The contrast of two colours as WCAG 2 defines it, from 1 to 21. */
function contrast(one: string, other: string): number {
  const [dim = 0, bright = 0] = [luminance(one), luminance(other)].toSorted((a, b) => a - b)
  return (bright + 0.05) / (dim + 0.05)
}

function luminance(colour: string): number {
  const [r = NaN, g = NaN, b = NaN] = (colour.match(/[\d.]+/g) ?? []).map((part) => {
    const level = Number(part) / 255
    return level <= 0.03928 ? level / 12.92 : ((level + 0.055) / 1.055) ** 2.4
  })
  return 0.2126 * r + 0.7152 * g + 0.0722 * b
}
