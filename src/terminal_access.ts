// Who may be at a terminal: asked when an operator comes, when users or devices change, and now and then.
import { can, type Actor } from './auth.ts'
import { AppError } from './errors.ts'
import type { Identities } from './identities.ts'
import type { TerminalSession } from './terminal_session.ts'

/** Whether the session's operator may stay, as they are now. */
export async function mayStay(identities: Identities, session: TerminalSession): Promise<boolean> {
  const { userId, sessionId } = session.actor
  try {
    return reaches(await identities.of({ userId, sessionId, expiresAt: 0 }), session)
  } catch (error) {
    // While PostgreSQL is away there is nothing to tell; the next look decides.
    return !(error instanceof AppError && error.status < 500)
  }
}

function reaches(actor: Actor, { orgId, siteId }: TerminalSession): boolean {
  if (!can(actor.role, 'terminals.write')) return false
  if (actor.orgId !== null && actor.orgId !== orgId) return false
  return actor.siteIds === null || actor.siteIds.includes(siteId)
}
