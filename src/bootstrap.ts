// The first start of an empty database: the default organization and site, and the first platform
// admin. Two hubs that start together make one of each. Prints nothing; main.ts does.
import { auditOfSystem, insertAudit } from './audit.ts'
import { keptSecret, secretFile, type Config } from './config.ts'
import type { Database, Queryable } from './db.ts'
import { AppError } from './errors.ts'
import { insertEvents } from './events.ts'
import { newId } from './ids.ts'
import { limits } from './limits.ts'
import type { Passwords } from './passwords.ts'
import { insertInvited, inviteUrl, newInvitation, type NewUser } from './resources/invitations.ts'
import { insertOrganization } from './resources/organizations.ts'
import { insertSite } from './resources/sites.ts'

/** The first platform admin as just made; what is secret in it is told once and never again. */
export interface FirstAdmin {
  email: string
  /** A password that the hub made up, and the file in which it stays. */
  generated?: { password: string; file: string }
  /** The link with which an invited admin sets a password. */
  inviteUrl?: string
}

export interface BootstrapOptions {
  config: Pick<Config, 'production' | 'dataDir' | 'adminEmail' | 'adminPassword'>
  /** In production, who is invited when no ADMIN_EMAIL is set: ACME_EMAIL. */
  inviteEmail: string | undefined
  publicOrigin: string
  db: Database
  passwords: Passwords
}

/** Makes what an empty database lacks. Returns the admin when this start made it. */
export async function bootstrap(options: BootstrapOptions): Promise<FirstAdmin | undefined> {
  const { config, db } = options
  const email = config.adminEmail ?? (config.production ? options.inviteEmail : 'admin@localhost')
  return db.transaction(async (tx) => {
    await tx.query(`select pg_advisory_xact_lock(hashtext('muster.bootstrap'))`)
    await ensureOrganization(tx)
    const admins = await tx.query(`select from users where role = 'platform_admin' limit 1`)
    if (admins.length > 0 || email === undefined) return undefined
    // Under the lock although it hashes: the pool has nothing else to do yet, and a password made by
    // the hub that lost the race would be told to somebody.
    return makeAdmin(tx, options, email)
  })
}

/** What to print about the first admin. */
export function introduce(admin: FirstAdmin): string[] {
  const { email, generated } = admin
  if (generated) {
    return [
      `Sign in as ${email} with the password ${generated.password}`,
      `(kept in ${generated.file})`,
    ]
  }
  if (admin.inviteUrl === undefined) return [`Sign in as ${email} with ADMIN_PASSWORD`]
  return [
    `${email} is invited as platform admin; this link sets the password, once and for ${limits.inviteHours} hours:`,
    admin.inviteUrl,
  ]
}

/** Invites a platform admin, or makes a new link for one who has not accepted yet. Returns the link. */
export async function invitePlatformAdmin(
  db: Database,
  email: string,
  publicOrigin: string,
): Promise<string> {
  const invitation = newInvitation()
  await db.transaction(async (tx) => {
    const [known] = await tx.query<{ id: string; role: string; status: string }>(
      'select id, role, status from users where lower(email) = lower($1) for update',
      [email],
    )
    if (!known) {
      const id = await invite(tx, { email, role: 'platform_admin', orgId: null }, invitation)
      if (id !== undefined) return
      throw new AppError('CONFLICT', `${email} is being invited by somebody else right now`)
    }
    if (known.role !== 'platform_admin') {
      throw new AppError('CONFLICT', `${email} is a user of an organization, no platform admin`)
    }
    if (known.status !== 'invited') {
      throw new AppError(
        'CONFLICT',
        `${email} accepted an invitation before and is ${known.status}`,
      )
    }
    await tx.query(
      `update users set invite_hash = $2, updated_at = now(),
         invite_expires_at = now() + interval '${limits.inviteHours} hours' where id = $1`,
      [known.id, invitation.hash],
    )
    await recordUser(tx, 'user.invite', known.id, email)
  })
  return inviteUrl(publicOrigin, invitation)
}

// ---- parts -----------------------------------------------------------------------------------

const everything = { orgId: null, siteIds: null }

/** Global enrollment without a site needs one to go to. */
async function ensureOrganization(tx: Queryable): Promise<void> {
  const some = await tx.query('select from organizations limit 1')
  if (some.length > 0) return
  const orgId = newId()
  const siteId = newId()
  const name = 'Default'
  await insertOrganization(tx, { id: orgId, name, slug: 'default' })
  await insertSite(tx, everything, { id: siteId, orgId, name, timezone: null, address: null })
  const made = (resourceType: string, resourceId: string) =>
    auditOfSystem({
      action: `${resourceType}.create`,
      resourceType,
      resourceId,
      orgId,
      details: { after: { name } },
    })
  await insertAudit(tx, [made('organization', orgId), made('site', siteId)])
}

async function makeAdmin(
  tx: Queryable,
  { config, publicOrigin, passwords }: BootstrapOptions,
  email: string,
): Promise<FirstAdmin | undefined> {
  const user = { email, role: 'platform_admin', orgId: null } as const
  if (config.adminPassword === undefined && config.production) {
    const invitation = newInvitation()
    const id = await invite(tx, user, invitation)
    return id === undefined ? undefined : { email, inviteUrl: inviteUrl(publicOrigin, invitation) }
  }
  const password = config.adminPassword ?? keptSecret(config.dataDir, 'ADMIN_PASSWORD')
  const id = newId()
  const made = await tx.query(
    `insert into users (id, email, role, password_hash) values ($1, $2, 'platform_admin', $3)
     on conflict (lower(email)) do nothing returning id`,
    [id, email, await passwords.hash(password)],
  )
  if (made.length === 0) return undefined
  await recordUser(tx, 'user.create', id, email)
  if (config.adminPassword !== undefined) return { email }
  return { email, generated: { password, file: secretFile(config.dataDir, 'ADMIN_PASSWORD') } }
}

async function invite(
  tx: Queryable,
  user: NewUser,
  invitation: ReturnType<typeof newInvitation>,
): Promise<string | undefined> {
  const id = await insertInvited(tx, user, invitation)
  if (id !== undefined) await recordUser(tx, 'user.invite', id, user.email)
  return id
}

async function recordUser(
  tx: Queryable,
  action: 'user.create' | 'user.invite',
  id: string,
  email: string,
): Promise<void> {
  const after = { email, role: 'platform_admin' }
  const subject = { action, resourceType: 'user', resourceId: id, orgId: null, details: { after } }
  await insertAudit(tx, [auditOfSystem(subject)])
  if (action === 'user.create') return
  await insertEvents(tx, [{ orgId: null, type: 'user.invited', data: { userId: id, ...after } }])
}
