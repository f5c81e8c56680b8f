// Operators on other hubs, of sessions that live here: tickets are redeemed for a line, and the line takes the place
// of a socket. Each belongs to the hub that redeemed it.
import { randomBytes } from 'node:crypto'
import type { AuditSource } from './audit.ts'
import { can, type Actor } from './auth.ts'
import { AppError } from './errors.ts'
import type { Identities } from './identities.ts'
import { limits } from './limits.ts'
import { closeCodes } from './protocol.ts'
import { deviceOffline, terminalEnded, wayBroke } from './terminal_ends.ts'
import type { TerminalLink } from './terminal_link.ts'
import { ways, type Asker, type IssuedTicket, type Question } from './terminal_messages.ts'
import type { OperatorLine, TerminalSession } from './terminal_session.ts'
import type { Terminals } from './terminals.ts'

interface HomeLine {
  node: string
  session: TerminalSession
  actor: Actor
  source: AuditSource | undefined
  line: OperatorLine | undefined
  /** Until its socket is there. */
  expiry: NodeJS.Timeout | undefined
}

export interface HomeLinesOptions {
  link: TerminalLink
  terminals: Terminals
  identities: Identities
}

export class HomeLines {
  private readonly lines = new Map<string, HomeLine>()
  private readonly options: HomeLinesOptions

  constructor(options: HomeLinesOptions) {
    this.options = options
  }

  close(): void {
    for (const { expiry } of this.lines.values()) clearTimeout(expiry)
  }

  /** What another hub asks for one of its operators. */
  async answer(from: string, question: Question): Promise<unknown> {
    switch (question.op) {
      case 'open':
        return this.open(question)
      case 'ticket':
        return this.issue(question)
      case 'redeem':
        return this.redeem(from, question)
      case 'keeps':
        return question.ids.filter((id) => this.options.terminals.find(id) !== undefined)
    }
  }

  /** The socket of a line is open there. */
  up(from: string, key: string, source: AuditSource): void {
    const found = this.lines.get(key)
    if (found?.node !== from || found.line) return this.refuse(from, key)
    clearTimeout(found.expiry)
    found.expiry = undefined
    found.source = { ...source, actor: found.actor }
    found.line = this.lineTo(from, key, found.actor)
    this.options.terminals.operatorUp(found.session, found.line)
  }

  /** It is gone. */
  down(from: string, key: string): void {
    if (this.lines.get(key)?.node === from) this.drop(key)
  }

  fromOperator(from: string, key: string, bytes: Uint8Array): void {
    const { node, session, line, source } = this.lines.get(key) ?? {}
    if (node !== from || !session || !line || !source) return this.refuse(from, key)
    this.options.terminals.fromOperator(session, line, source, bytes)
  }

  /** That hub has sockets for these: those that are not known here are to be closed. */
  heard(from: string, keys: readonly string[]): void {
    for (const key of keys) if (this.lines.get(key)?.node !== from) this.refuse(from, key)
  }

  /** Hubs that have a line. */
  *nodes(): Iterable<string> {
    for (const { node } of this.lines.values()) yield node
  }

  lose(isLost: (node: string) => boolean): void {
    for (const [key, { node }] of this.lines) if (isLost(node)) this.drop(key)
  }

  private async open({ asker, source, device, size }: Extract<Question, { op: 'open' }>) {
    const { terminals } = this.options
    const actor = await this.actorOf(asker)
    if (!(await terminals.arrival(device.id))) throw deviceOffline()
    const { session, ticket, expiresMs } = await terminals.open({ ...source, actor }, device, size)
    return { id: session.id, ticket, expiresMs } satisfies IssuedTicket
  }

  private async issue({ asker, id }: Extract<Question, { op: 'ticket' }>) {
    const session = this.options.terminals.find(id)
    const actor = await this.actorOf(asker)
    if (session === undefined || session.actor.userId !== actor.userId) throw terminalEnded(null)
    return { id, ...session.issueTicket(actor, Date.now()) } satisfies IssuedTicket
  }

  private redeem(from: string, { id, ticket }: Extract<Question, { op: 'redeem' }>) {
    const session = this.options.terminals.find(id)
    const actor = session?.redeem(ticket, Date.now())
    if (session === undefined || actor === undefined) return null
    const line = randomBytes(16).toString('hex')
    const expiry = setTimeout(() => this.lines.delete(line), limits.ticketSeconds * 1000)
    const none = { source: undefined, line: undefined }
    this.lines.set(line, { node: from, session, actor, ...none, expiry })
    return { line, actor }
  }

  private async actorOf({ userId, sessionId }: Asker): Promise<Actor> {
    const actor = await this.options.identities.of({ userId, sessionId, expiresAt: 0 })
    if (can(actor.role, 'terminals.write')) return actor
    throw new AppError('FORBIDDEN', `your role ${actor.role} may not open terminals`)
  }

  private lineTo(node: string, key: string, actor: Actor): OperatorLine {
    const { link } = this.options
    return {
      actor,
      send: (frame) => {
        if (link.frame(node, ways.toOperator, key, frame)) return
        // Not in the middle of what sends it.
        setImmediate(() => this.refuse(node, key))
      },
      close: (code, reason) => {
        this.lines.delete(key)
        link.tell(node, { op: 'close', line: key, code, reason })
      },
    }
  }

  /** A line that is not here, or lost something: its client comes back. */
  private refuse(node: string, key: string): void {
    this.drop(key)
    const close = { op: 'close', line: key, code: closeCodes.restart, reason: wayBroke } as const
    this.options.link.tell(node, close)
  }

  private drop(key: string): void {
    const found = this.lines.get(key)
    this.lines.delete(key)
    clearTimeout(found?.expiry)
    if (found?.line) this.options.terminals.operatorDown(found.session, found.line)
  }
}
