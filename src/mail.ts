// Mail by SMTP: invitations, sent after the commit. The only user of nodemailer, which is loaded with the
// first mail. What waits lives in memory: whoever invites has the link in the answer already, and a link
// can be made anew, while a stored mail would keep a token that is otherwise stored as a hash. So a mail
// that a crash loses costs one more click, and every other outcome is logged and audited.
import { setTimeout as sleep } from 'node:timers/promises'
import type { Transporter } from 'nodemailer'
import { auditOfSystem, insertAudit, type AuditSubject } from './audit.ts'
import type { Config } from './config.ts'
import type { Queryable } from './db.ts'
import { limits } from './limits.ts'
import { withoutPasswords, type Logger } from './log.ts'
import type { Metrics } from './metrics.ts'
import { once } from './once.ts'

export interface Mail {
  to: string
  subject: string
  text: string
  html: string
  /** The audit row of its outcome. */
  about: AuditSubject
}

export interface Mailer {
  /** Returns at once; the outcome is logged and audited. Too many open: given up at once. */
  send(mail: Mail): void
  /** Gives up what waits to be tried again, lets what is being sent end within a bound. */
  close(): Promise<void>
}

interface MailerOptions {
  config: Pick<Config, 'smtpUrl' | 'publicOrigin'>
  db: Queryable
  log: Logger
  metrics: Metrics
  /** Pauses before each further try, in seconds. */
  retrySeconds?: readonly number[]
}

/** A mailer through SMTP_URL, or undefined without it. */
export function mailer(options: MailerOptions): Mailer | undefined {
  const { smtpUrl } = options.config
  return smtpUrl === undefined ? undefined : new SmtpMailer(options, smtpUrl)
}

class SmtpMailer implements Mailer {
  private readonly open = new Set<Promise<void>>()
  private readonly stopping = new AbortController()
  private readonly transport
  private readonly from
  private readonly options
  /** The mail being sent: one at a time is enough for invitations, and gentle to the server. */
  private turn: Promise<unknown> = Promise.resolve()

  constructor(options: MailerOptions, smtpUrl: string) {
    this.options = options
    const url = new URL(smtpUrl)
    this.transport = once(() => connectTo(url))
    this.from = { name: 'Muster', address: senderOf(url, options.config.publicOrigin) }
  }

  send(mail: Mail): void {
    if (this.open.size >= limits.mailsOpenMax) {
      void this.record(mail, 'too many mails are waiting')
      return
    }
    const delivery = this.deliver(mail).finally(() => this.open.delete(delivery))
    this.open.add(delivery)
  }

  async close(): Promise<void> {
    this.stopping.abort()
    const giveUp = new AbortController()
    const bound = sleep(limits.checkoutMsMax, undefined, { signal: giveUp.signal })
    await Promise.race([Promise.all(this.open), bound.catch(() => undefined)])
    giveUp.abort()
    if (this.open.size > 0) {
      this.options.log.error(
        { mails: this.open.size },
        'mails were not sent before the hub stopped',
      )
    }
  }

  /** Tries until the mail is taken, refused for good, or every pause is used up. Never rejects. */
  private async deliver(mail: Mail): Promise<void> {
    const pauses = this.options.retrySeconds ?? limits.mailRetrySeconds
    for (let tries = 0; ; tries++) {
      const failure = await this.inTurn(mail)
      if (failure === undefined) return this.record(mail, undefined)
      const pauseSeconds = pauses[tries]
      if (failure.permanent || pauseSeconds === undefined) return this.record(mail, failure.reason)
      this.options.metrics.mails.inc({ outcome: 'retried' })
      this.options.log.warn(
        { ...aboutOf(mail), reason: failure.reason, pauseSeconds },
        'a mail was not taken; it is tried again',
      )
      if (!(await this.pause(pauseSeconds))) return this.record(mail, 'the hub stopped')
    }
  }

  /** Sends when those before have had their turn. Returns why not, or undefined. */
  private inTurn(mail: Mail): Promise<Failure | undefined> {
    const attempt = this.turn.then(async () => {
      try {
        const transport = await this.transport()
        await transport.sendMail({
          from: this.from,
          // As an object it is one address, whatever characters it holds.
          to: { name: '', address: mail.to },
          subject: mail.subject,
          text: mail.text,
          html: mail.html,
          headers: { 'Auto-Submitted': 'auto-generated' },
        })
        return undefined
      } catch (error) {
        return failureOf(error)
      }
    })
    this.turn = attempt
    return attempt
  }

  /** False when the hub stops first. */
  private pause(seconds: number): Promise<boolean> {
    return sleep(seconds * 1000, true, { signal: this.stopping.signal }).catch(() => false)
  }

  private async record(mail: Mail, reason: string | undefined): Promise<void> {
    const { db, log, metrics } = this.options
    const sent = reason === undefined
    metrics.mails.inc({ outcome: sent ? 'sent' : 'failed' })
    if (sent) log.info(aboutOf(mail), 'a mail was sent')
    else log.error({ ...aboutOf(mail), reason }, 'a mail was given up')
    const details = { ...mail.about.details, ...(sent ? {} : { reason }) }
    const result = sent ? 'success' : 'failure'
    try {
      await insertAudit(db, [auditOfSystem({ ...mail.about, result, details })])
    } catch (error) {
      log.error({ ...aboutOf(mail), err: error }, 'the outcome of a mail was not audited')
    }
  }
}

/** Who it was for, without the link. */
function aboutOf({ about }: Mail) {
  return { action: about.action, resourceId: about.resourceId }
}

// ---- SMTP ------------------------------------------------------------------------------------

async function connectTo(url: URL): Promise<Transporter> {
  const { createTransport } = await import('nodemailer')
  const user = decodeURIComponent(url.username)
  const secure = url.protocol === 'smtps:'
  const requireTLS = url.searchParams.get('requireTLS')
  return createTransport({
    host: url.hostname.replace(/^\[|\]$/g, ''),
    port: Number(url.port) || (secure ? 465 : 587),
    secure,
    // STARTTLS is used where it is offered; a password is not sent without, unless the URL says so.
    requireTLS: requireTLS === null ? user !== '' : requireTLS === 'true',
    ...(user === '' ? {} : { auth: { user, pass: decodeURIComponent(url.password) } }),
    dnsTimeout: limits.mailConnectMsMax,
    connectionTimeout: limits.mailConnectMsMax,
    greetingTimeout: limits.mailConnectMsMax,
    socketTimeout: limits.mailSilenceMsMax,
    disableFileAccess: true,
    disableUrlAccess: true,
  })
}

/** `?from=`, else the user where it is an address, else the public host's. */
function senderOf(url: URL, publicOrigin: string | undefined): string {
  const user = decodeURIComponent(url.username)
  const host = publicOrigin === undefined ? 'localhost' : new URL(publicOrigin).hostname
  return url.searchParams.get('from') ?? (user.includes('@') ? user : `muster@${host}`)
}

interface Failure {
  /** The server said so with a 5xx: the same mail would be refused again. */
  permanent: boolean
  reason: string
}

function failureOf(error: unknown): Failure {
  const message = error instanceof Error ? error.message : String(error)
  const code = error instanceof Error && 'responseCode' in error ? Number(error.responseCode) : 0
  // Servers may quote the mail that they refuse, and with it the link.
  const reason = withoutPasswords(message).replace(/\bm\w\w_[\w-]{20,}/g, '[secret]')
  return { permanent: code >= 500, reason }
}
