// A mail server made of a bare socket: takes mails and keeps them, or refuses as a test says.
import { once } from 'node:events'
import { createServer, type AddressInfo, type Socket } from 'node:net'

export interface Received {
  from: string
  to: string
  /** Headers and body as they came. */
  raw: string
  headers: Map<string, string>
  /** The plain text part, decoded. */
  text: string
  html: string
}

export interface TestSmtp {
  /** `smtp://127.0.0.1:port` */
  url: string
  readonly received: Received[]
  /** Connections made so far. */
  readonly connections: number
  /** The next recipients are answered so, one line each, instead of being taken. */
  refuseNext(...replies: string[]): void
  /** From now on it accepts connections and says nothing. */
  fallSilent(): void
  close(): Promise<void>
}

export async function startSmtp(): Promise<TestSmtp> {
  const received: Received[] = []
  const refusals: string[] = []
  const sockets = new Set<Socket>()
  const state = { silent: false, connections: 0 }
  const server = createServer((socket) => {
    state.connections++
    sockets.add(socket)
    socket.on('close', () => sockets.delete(socket))
    socket.on('error', () => {})
    if (!state.silent) converse(socket, refusals, (mail) => received.push(mail))
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  return {
    url: `smtp://127.0.0.1:${(server.address() as AddressInfo).port}`,
    received,
    get connections() {
      return state.connections
    },
    refuseNext: (...replies) => void refusals.push(...replies),
    fallSilent: () => void (state.silent = true),
    async close() {
      for (const socket of sockets) socket.destroy()
      server.close()
      await once(server, 'close')
    },
  }
}

function converse(socket: Socket, refusals: string[], onMail: (mail: Received) => void): void {
  const say = (line: string) => socket.write(`${line}\r\n`)
  let from = ''
  let to = ''
  let inData = false
  let waiting = ''
  socket.setEncoding('latin1')
  say('220 test')
  socket.on('data', (chunk) => {
    waiting += String(chunk)
    for (;;) {
      const end = waiting.indexOf(inData ? '\r\n.\r\n' : '\r\n')
      if (end < 0) return
      const part = waiting.slice(0, end)
      waiting = waiting.slice(end + (inData ? 5 : 2))
      if (inData) {
        inData = false
        onMail(parse(from, to, part.replace(/^\.\./gm, '.')))
        say('250 taken')
      } else command(part)
    }
  })

  function command(line: string): void {
    const verb = line.slice(0, 4).toUpperCase()
    const address = /<(.*?)>/.exec(line)?.[1] ?? ''
    if (verb === 'MAIL') from = address
    if (verb === 'RCPT') {
      const refusal = refusals.shift()
      if (refusal !== undefined) return void say(refusal)
      to = address
    }
    if (verb === 'DATA') {
      inData = true
      return void say('354 go on')
    }
    if (verb === 'STAR') return void say('502 no TLS here')
    say(verb === 'QUIT' ? '221 bye' : '250 ok')
    if (verb === 'QUIT') socket.end()
  }
}

function parse(from: string, to: string, raw: string): Received {
  const [head = ''] = raw.split('\r\n\r\n', 1)
  const headers = new Map(
    head
      .replace(/\r\n[ \t]+/g, ' ')
      .split('\r\n')
      .map((line) => {
        const colon = line.indexOf(':')
        return [line.slice(0, colon).toLowerCase(), line.slice(colon + 1).trim()] as const
      }),
  )
  return { from, to, raw, headers, text: partOf(raw, 'text/plain'), html: partOf(raw, 'text/html') }
}

/** The decoded part of a multipart mail. */
function partOf(raw: string, type: string): string {
  const boundary = /boundary="?([^"\r\n;]+)/.exec(raw)?.[1] ?? '\r\n\r\n'
  const found =
    raw.split(`--${boundary}`).find((one) => one.includes(`Content-Type: ${type}`)) ?? ''
  const body = found.slice(found.indexOf('\r\n\r\n') + 4)
  if (/base64/i.test(found)) return Buffer.from(body, 'base64').toString()
  if (!/quoted-printable/i.test(found)) return body
  const bytes = body
    .replace(/=\r\n/g, '')
    .replace(/=([0-9A-F]{2})/g, (_, hex: string) => String.fromCharCode(parseInt(hex, 16)))
  return Buffer.from(bytes, 'latin1').toString()
}
