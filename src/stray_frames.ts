// Frames for a terminal that is another's: who sends them is written down, but the flood of them is not.
import { LRUCache } from 'lru-cache'
import { auditOf, type AuditSource, type AuditSubject, type AuditTrail } from './audit.ts'
import { limits } from './limits.ts'
import type { Logger } from './log.ts'

export class StrayFrames {
  private readonly told = new LRUCache<string, true>({
    max: limits.foreignFrameSendersMax,
    ttl: limits.foreignFrameMs,
  })
  private readonly trail: AuditTrail
  private readonly log: Logger

  constructor(trail: AuditTrail, log: Logger) {
    this.trail = trail
    this.log = log
  }

  /** One row per sender and minute, in the audit of the sender's own organization. */
  audit(
    sender: string,
    source: AuditSource,
    subject: Pick<AuditSubject, 'resourceId' | 'orgId' | 'deviceId'>,
  ): void {
    if (this.told.has(sender)) return
    this.told.set(sender, true)
    const about = { action: 'terminal.foreign_frame', resourceType: 'terminal', ...subject }
    const entry = auditOf(source, { ...about, result: 'denied' })
    const { deviceId } = subject
    const written = this.trail.denied(
      deviceId ? { ...entry, actorType: 'agent', actorId: deviceId, requestId: null } : entry,
    )
    written.catch((error: unknown) => this.log.warn({ err: error }, 'a stray frame is not audited'))
  }
}
