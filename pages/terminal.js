// The page of a terminal: signs in, opens a session, shows it, and comes back when its socket is lost. What goes
// over the socket is terminal_client.ts', the same file that the hub and its tests load. Tokens stay in memory.
import { Api } from './api.js'
import { styleWithoutInline } from './styles.js'
import { TerminalClient } from './terminal_client.ts'

const element = (id) => document.getElementById(id)
const deviceId = location.pathname.split('/').at(-1)
const encoder = new TextEncoder()
const retryMsMin = 500
const retryMsMax = 10_000
/** What was typed and is not confirmed after this: the device does not answer. */
const answerMsMax = 3_000

const api = new Api()
let screen
let session

styleWithoutInline()

element('form').addEventListener('submit', (event) => {
  event.preventDefault()
  void signIn()
})
element('end').addEventListener('click', () => session?.end())
element('again').addEventListener('click', () => void goOn())
element('reader').addEventListener('change', ({ target }) => {
  screen.options.screenReaderMode = target.checked
})
element('email').focus()

async function signIn() {
  const button = element('form').querySelector('button')
  button.disabled = true
  element('problem').textContent = ''
  try {
    await api.signIn(element('email').value.trim(), element('password').value)
    element('password').value = ''
    element('form').hidden = true
    element('bar').hidden = element('screen').hidden = false
    screen ??= makeScreen()
    screen.focus()
    await goOn()
  } catch (error) {
    element('problem').textContent = error.message
    element('email').focus()
  } finally {
    button.disabled = false
  }
}

/** The session again after its page or its sign-in was lost, or a new one. */
async function goOn() {
  element('again').hidden = true
  if (session && !session.over) return session.reconnect()
  screen.reset()
  session = new Session()
  await session.begin()
}

// ---- what is seen

function makeScreen() {
  const terminal = new globalThis.Terminal({
    fontFamily: 'ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace',
    fontSize: 14,
    scrollback: 10_000,
    macOptionIsMeta: true,
  })
  const fit = new globalThis.FitAddon.FitAddon()
  terminal.loadAddon(fit)
  terminal.open(element('screen'))
  fit.fit()
  new ResizeObserver(() => fit.fit()).observe(element('screen'))

  const dark = matchMedia('(prefers-color-scheme: dark)')
  const follow = () => {
    terminal.options.theme = dark.matches
      ? { background: '#1e232b', foreground: '#e6eaf0', cursor: '#e6eaf0' }
      : {
          background: '#ffffff',
          foreground: '#1b2330',
          cursor: '#1b2330',
          selectionBackground: '#b9d3ff',
          // The usual ones can't be read on white.
          yellow: '#7a5c00',
          green: '#1a6b1a',
          cyan: '#006a75',
          brightYellow: '#7a5c00',
          brightGreen: '#1a6b1a',
          brightCyan: '#006a75',
          white: '#555555',
          brightWhite: '#333333',
        }
  }
  dark.addEventListener('change', follow)
  follow()

  terminal.onData((text) => session?.type(encoder.encode(text)))
  terminal.onBinary((text) => session?.type(Uint8Array.from(text, (char) => char.charCodeAt(0))))
  terminal.onResize(({ cols, rows }) => session?.resize({ cols, rows }))
  // Tab belongs to the shell, so another key must lead out of it.
  terminal.attachCustomKeyEventHandler((event) => {
    if (event.key !== 'F6' || !event.shiftKey) return true
    if (event.type === 'keydown') element(element('again').hidden ? 'end' : 'again').focus()
    return false
  })
  return terminal
}

function tell(text, { bad = false, again = '' } = {}) {
  element('state').textContent = text
  element('state').classList.toggle('bad', bad)
  element('again').textContent = again
  element('again').hidden = again === ''
  element('end').disabled = !session || session.over
}

// ---- a session

class Session {
  over = false
  socket
  client
  id
  tries = 0
  exit
  waiting
  unanswered = false

  async begin() {
    const { cols, rows } = screen
    tell('Opening a terminal…')
    try {
      const device = await api.ask('GET', `/devices/${deviceId}`)
      element('device').textContent = device.displayName ?? device.hostname
      document.title = `${element('device').textContent} · Terminal · Muster`
      const ticket = await api.ask('POST', `/devices/${deviceId}/terminals`, { cols, rows })
      this.id = ticket.id
      this.client = new TerminalClient(
        ticket.id,
        { cols, rows },
        {
          output: (bytes, done) => screen.write(bytes, done),
          opened: () => this.opened(),
          exit: (exitCode, signal) => (this.exit = signal || `exit code ${exitCode}`),
          closed: (why) => this.ended(why),
        },
      )
      this.connect(ticket)
    } catch (error) {
      this.over = true
      this.refused(error)
    }
  }

  async reconnect() {
    try {
      this.connect(await api.ask('POST', `/terminals/${this.id}/tickets`))
    } catch (error) {
      if (error.status === 404 || error.status === 409) this.close(error.message)
      else if (error.status === undefined || error.status >= 429) this.retry()
      else this.refused(error)
    }
  }

  type(bytes) {
    if (this.over || !this.client) return
    this.client.type(bytes)
    this.waiting ??= setTimeout(() => this.look(), answerMsMax)
  }

  resize(size) {
    this.client?.resize(size)
  }

  end() {
    this.client?.end()
  }

  connect({ websocketUrl, ticket }) {
    // Where the page is from, whatever name the hub knows itself by.
    const url = new URL(new URL(websocketUrl).pathname, location.href.replace(/^http/, 'ws'))
    const socket = new WebSocket(url, ['muster-terminal.v1', `ticket.${ticket}`])
    this.socket = socket
    socket.binaryType = 'arraybuffer'
    socket.addEventListener('open', () => this.client.connected((frame) => socket.send(frame)))
    socket.addEventListener('message', ({ data }) => this.receive(new Uint8Array(data)))
    socket.addEventListener('close', ({ code }) => this.lost(socket, code))
  }

  opened() {
    this.tries = 0
    this.unanswered = false
    tell('Connected')
  }

  receive(message) {
    this.client.receive(message)
    // What was typed is confirmed: the device is back.
    if (this.unanswered && !this.over && this.client.unconfirmed === 0) this.opened()
  }

  lost(socket, code) {
    if (this.over || socket !== this.socket) return
    this.client.disconnected()
    this.unanswered = false
    // To take it back by itself would be a fight between two windows.
    if (code === 4002) return tell('Opened in another window', { again: 'Continue here' })
    this.retry()
  }

  retry() {
    tell('Connection lost. Connecting again…', { bad: true })
    const ms = Math.min(retryMsMax, retryMsMin * 2 ** this.tries++) * (0.5 + Math.random() / 2)
    setTimeout(() => void this.reconnect(), ms)
  }

  /** Input that nobody confirms: hub and page are connected, the device is not. */
  look() {
    this.waiting = undefined
    if (this.over || this.client.unconfirmed === 0) return
    if (this.socket.readyState === WebSocket.OPEN) {
      this.unanswered = true
      tell('The device does not answer. What you type waits for it.', { bad: true })
    }
    this.waiting = setTimeout(() => this.look(), answerMsMax)
  }

  ended(why) {
    this.close(`Ended: ${why}`)
  }

  close(text) {
    this.over = true
    clearTimeout(this.waiting)
    tell(this.exit ? `Ended: ${this.exit}` : text, { again: 'Open a new terminal' })
  }

  refused(error) {
    if (error.status === 401) {
      element('bar').hidden = element('screen').hidden = true
      element('form').hidden = false
      element('problem').textContent = 'Your sign-in has ended. Sign in again to go on.'
      return element('email').focus()
    }
    tell(error.message, { bad: true, again: 'Try again' })
  }
}
