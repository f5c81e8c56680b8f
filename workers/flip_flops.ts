// Whether a device has a twin: two agents with one identity take the socket from each other again and
// again, while an honest one replaces its own only when its network failed. Clock is passed in.
import type { NewAlert } from '../src/alerts.ts'
import { limits } from '../src/limits.ts'

interface Replacements {
  count: number
  sinceMs: number
}

export class FlipFlops {
  /** The longest silent comes first. */
  private readonly devices = new Map<string, Replacements>()

  /** A newer socket replaced an open one; true when that happened too often to be an accident. */
  replaced(deviceId: string, nowMs: number): boolean {
    const earlier = this.devices.get(deviceId)
    const fresh = earlier === undefined || nowMs - earlier.sinceMs > limits.flipFlopMs
    const now = fresh ? { count: 1, sinceMs: nowMs } : { ...earlier, count: earlier.count + 1 }
    this.devices.delete(deviceId)
    this.devices.set(deviceId, now)
    if (this.devices.size > limits.flipFlopDevicesMax) {
      const [silent] = this.devices.keys()
      if (silent !== undefined) this.devices.delete(silent)
    }
    return now.count >= limits.flipFlopsMax
  }
}

export function twinAlert(device: { id: string; orgId: string }): NewAlert {
  return {
    kind: 'duplicate_identity',
    severity: 'high',
    title: 'Two agents use one identity',
    message:
      'Sockets of this device replace each other again and again: its agent’s state was probably copied to another machine. Enroll one of them anew.',
    context: { reason: 'sockets' },
    dedupeKey: `duplicate_identity:${device.id}`,
    deviceId: device.id,
    orgId: device.orgId,
  }
}
