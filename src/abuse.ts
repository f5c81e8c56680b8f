// Guessed passwords as alerts: logins that a rate refused, gathered and written once a second, so that a
// flood costs one statement. Every known user is an alert of their organization; all emails that nobody
// has are one of the platform, or else whoever guesses could open any number.
import { raiseAlerts, type NewAlert } from './alerts.ts'
import { cleanText } from './clean.ts'
import { textArray, type Database, type Queryable } from './db.ts'
import { limits } from './limits.ts'
import type { Logger } from './log.ts'

export interface AbuseWatch {
  /** A login of this email was refused by a rate. */
  refused(ip: string, email: string): void
  /** Writes what waits. */
  close(): Promise<void>
}

interface Refused {
  ip: string
  count: number
}

/** A watch that writes to `db`; what it could not write it drops, since whoever guesses goes on. */
export function abuseWatch(db: Database, log: Logger): AbuseWatch {
  let waiting = new Map<string, Refused>()
  /** Refused, but of more emails than are kept. */
  let more = 0
  let timer: NodeJS.Timeout | undefined
  let writing = Promise.resolve()

  function flush(): void {
    timer = undefined
    const [batch, others] = [waiting, more]
    waiting = new Map()
    more = 0
    writing = writing
      .then(() => db.transaction((tx) => write(tx, batch, others)))
      .catch((error: unknown) => log.error({ err: error }, 'refused logins could not be told of'))
  }

  return {
    refused(ip, email) {
      const key = cleanText(email.toLowerCase(), limits.emailCharsMax)
      const count = (waiting.get(key)?.count ?? 0) + 1
      if (count > 1 || waiting.size < limits.abuseEmailsMax) waiting.set(key, { ip, count })
      else more++
      timer ??= setTimeout(flush, limits.abuseGapMs)
    },
    async close() {
      clearTimeout(timer)
      if (timer !== undefined) flush()
      await writing
    },
  }
}

interface KnownUser extends Record<string, unknown> {
  id: string
  orgId: string | null
  email: string
  key: string
}

async function write(
  tx: Queryable,
  refused: ReadonlyMap<string, Refused>,
  more: number,
): Promise<void> {
  const users = await tx.query<KnownUser>(
    `select u.id, u.org_id as "orgId", u.email, lower(u.email) as key from users u
     where lower(u.email) = any($1::text[])`,
    [textArray([...refused.keys()])],
  )
  const known = new Map(users.map((user) => [user.key, user]))
  const alerts: NewAlert[] = []
  const unknown = { ip: '', count: more }
  for (const [key, attempts] of refused) {
    const user = known.get(key)
    if (user) alerts.push(userAlert(user, attempts))
    else {
      unknown.ip = attempts.ip
      unknown.count += attempts.count
    }
  }
  if (unknown.count > 0) alerts.push(unknownAlert(unknown))
  await raiseAlerts(tx, alerts)
}

function userAlert({ id, orgId, email }: KnownUser, { ip, count }: Refused): NewAlert {
  return {
    kind: 'auth_abuse',
    severity: 'high',
    title: `Too many failed logins as ${email}`,
    message: `Logins as ${email} are refused for a while; the last one came from ${ip}.`,
    context: { userId: id, email, ip },
    dedupeKey: `auth_abuse:${id}`,
    deviceId: null,
    orgId,
    times: count,
  }
}

function unknownAlert({ ip, count }: Refused): NewAlert {
  return {
    kind: 'auth_abuse',
    severity: 'medium',
    title: 'Too many failed logins as nobody known',
    message: `Logins with emails that no user has are refused for a while; the last one came from ${ip || 'many addresses'}.`,
    context: { ip },
    dedupeKey: 'auth_abuse:unknown',
    deviceId: null,
    orgId: null,
    times: count,
  }
}
