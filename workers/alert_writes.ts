// The lane of a shard's alerts: what is raised and resolved within a moment is one transaction, in order
// for each key, however many devices it is about. Decides nothing.
import { raiseAlerts, resolveKeysSql, type NewAlert } from '../src/alerts.ts'
import { cleanText } from '../src/clean.ts'
import { plainArray, textArray, type Database } from '../src/db.ts'
import type { AlertFrame } from '../src/protocol.ts'

/** An alert that is over by itself. */
export interface Recovery {
  dedupeKey: string
  deviceId: string
  epoch: number
}

export type AlertWrite = { raise: NewAlert } | { recover: Recovery }

/** An agent's own alert: whatever it says, of this kind and under a key of its device. */
export function reportedAlert(
  device: { id: string; orgId: string; epoch: number },
  { severity, title, message = '', dedupeKey }: AlertFrame,
): NewAlert {
  return {
    kind: 'agent_reported',
    severity,
    title,
    message,
    context: {},
    dedupeKey: `agent:${device.id}:${cleanText(dedupeKey, Infinity)}`,
    deviceId: device.id,
    orgId: device.orgId,
    epoch: device.epoch,
  }
}

/** Writes a batch. `onRefused` hears how many agents' own alerts were beyond their bound. */
export async function writeAlerts(
  db: Database,
  writes: readonly AlertWrite[],
  onRefused: (count: number) => void,
): Promise<void> {
  await db.transaction(async (tx) => {
    for (const { raises, recoveries } of rounds(writes)) {
      const raised = new Set((await raiseAlerts(tx, raises)).map((alert) => alert.dedupeKey))
      const own = raises.filter(({ kind }) => kind === 'agent_reported')
      const refused = own.filter(({ dedupeKey }) => !raised.has(dedupeKey)).length
      if (refused > 0) onRefused(refused)
      if (recoveries.length === 0) continue
      await tx.query(resolveKeysSql, [
        'no longer over its threshold',
        textArray(recoveries.map((recovery) => recovery.dedupeKey)),
        plainArray(recoveries.map((recovery) => recovery.deviceId)),
        plainArray(recoveries.map((recovery) => recovery.epoch)),
      ])
    }
  })
}

interface Round {
  raises: NewAlert[]
  recoveries: Recovery[]
  /** Keys that were recovered in it: raised again, they belong to the next round. */
  over: Set<string>
}

/** Nearly always one: a second only where something rose again after it was over. */
function rounds(writes: readonly AlertWrite[]): Round[] {
  const all: Round[] = []
  const lastOf = new Map<string, number>()
  const at = (n: number) => (all[n] ??= { raises: [], recoveries: [], over: new Set() })
  for (const write of writes) {
    const key = 'raise' in write ? write.raise.dedupeKey : write.recover.dedupeKey
    let n = lastOf.get(key) ?? 0
    if ('raise' in write) {
      if (at(n).over.has(key)) n++
      at(n).raises.push(write.raise)
    } else {
      at(n).recoveries.push(write.recover)
      at(n).over.add(key)
    }
    lastOf.set(key, n)
  }
  return all
}
