// What the counts of a roll-out's group say: go on, wait or halt. Pure; what follows is `rollouts.ts`.

export interface GroupCounts {
  devices: number
  running: number
  completed: number
  failed: number
  timeout: number
  expired: number
  cancelled: number
  skipped: number
}

export interface Group extends GroupCounts {
  number: number
  successThreshold: number
  errorThreshold: number
  /** The roll-out was resumed despite it: it halts no more. */
  despite: boolean
}

export type Verdict = { type: 'wait' } | { type: 'passed' } | { type: 'halt'; reason: string }

/** Devices of the group that wait for their command. */
export function pendingOf(group: GroupCounts): number {
  const { devices, running, completed, failed, timeout, expired, cancelled, skipped } = group
  return devices - running - completed - failed - timeout - expired - cancelled - skipped
}

/** Devices of the group without an end. */
export function openOf(group: GroupCounts): number {
  return pendingOf(group) + group.running
}

/**
 * Both thresholds are parts of the devices that were reached or may still be: who is skipped, was never
 * there before its command expired, or was cancelled says nothing about the version.
 */
export function judge(group: Group): Verdict {
  const open = openOf(group)
  const counted = group.completed + errorsOf(group) + open
  const passed = group.completed * 100 >= group.successThreshold * counted
  if (group.despite) return passed || open === 0 ? { type: 'passed' } : { type: 'wait' }
  const reason = reasonToHalt(group, counted, open)
  if (reason !== undefined) return { type: 'halt', reason }
  return passed ? { type: 'passed' } : { type: 'wait' }
}

function reasonToHalt(group: Group, counted: number, open: number): string | undefined {
  const { number, completed, devices, skipped, errorThreshold, successThreshold } = group
  if (counted === 0) {
    if (devices === skipped) return undefined
    return `no device of group ${number} was reached before its command expired or was cancelled`
  }
  const errors = errorsOf(group)
  const failed = `${errors} of ${counted} devices of group ${number} failed`
  if (errors > 0 && errors * 100 >= errorThreshold * counted) {
    return `${failed}; its error threshold is ${errorThreshold} %`
  }
  if ((completed + open) * 100 >= successThreshold * counted) return undefined
  return `${failed}; its success threshold of ${successThreshold} % is out of reach`
}

function errorsOf({ failed, timeout }: GroupCounts): number {
  return failed + timeout
}
