// What a soak with faults is held to.
import { endedStatuses } from '../src/protocol.ts'
import type { RowSpec } from './rows.ts'

/** A soak of a quarter of an hour is warm; what a shorter one grows is mostly code that gets compiled. */
const longSeconds = 900
const growth = { long: 5, short: 25 }
/** Pools open a connection more or less; libuv and pg hold a handle more or less. */
const descriptorsMost = 16
const connectionsMost = 8
const lagMsMost = 50
const none = { goal: { valueMost: 0 } }

export function faultRows(seconds: number): RowSpec[] {
  const isLong = seconds >= longSeconds
  const most = isLong ? growth.long : growth.short
  const commands = { unit: 'commands', ...none }
  return [
    {
      id: 'F1',
      name: 'growth of RSS after warm-up',
      metric: 'rssGrowth',
      unit: '%',
      goal: { valueMost: most },
    },
    { id: 'F2', name: 'commands lost', metric: 'lost', ...commands },
    { id: 'F3', name: 'commands doubled', metric: 'doubled', ...commands },
    { id: 'F4', name: 'commands stuck or late', metric: 'stuck', ...commands },
    { id: 'F5', name: 'commands that ended otherwise', metric: 'wrong', ...commands },
    {
      id: 'F6',
      name: 'requests refused for good',
      metric: 'refused',
      unit: 'requests',
      ...none,
    },
    {
      id: 'F7',
      name: 'periods that ended with others online',
      metric: 'disagreed',
      unit: 'periods',
      ...none,
    },
    { id: 'F8', name: 'executions incomplete', metric: 'scripts', unit: 'executions', ...none },
    { id: 'F9', name: 'ends not heard once', metric: 'events', unit: 'events', ...none },
    { id: 'F10', name: 'left waiting at the end', metric: 'backlog', unit: 'rows', ...none },
    {
      id: 'F11',
      name: 'growth of open descriptors',
      metric: 'descriptorsGrowth',
      unit: 'descriptors',
      goal: { valueMost: descriptorsMost },
    },
    {
      id: 'F12',
      name: 'growth of PostgreSQL connections',
      metric: 'connectionsGrowth',
      unit: 'connections',
      goal: { valueMost: connectionsMost },
    },
    {
      id: 'F13',
      name: 'growth of event-loop lag, p99',
      metric: 'lagGrowth',
      unit: 'ms',
      // A short soak shares its machine, and then its lag is the others'.
      ...(isLong ? { goal: { valueMost: lagMsMost } } : {}),
    },
    { id: 'F14', name: 'the API shows something else', metric: 'shown', unit: 'answers', ...none },
    {
      id: 'F15',
      name: 'threads that died by themselves',
      metric: 'deaths',
      unit: 'threads',
      ...none,
    },
    { id: 'F16', name: 'faults injected', metric: 'faults', unit: 'faults', better: 'higher' },
    ...endedStatuses.map((status, index) => ({
      id: `F${17 + index}`,
      name: `commands that ended ${status}`,
      metric: status,
      unit: 'commands',
      better: 'higher' as const,
    })),
    {
      id: 'F22',
      name: 'devices that came and went',
      metric: 'gone',
      unit: 'devices',
      better: 'higher',
    },
    { id: 'F23', name: 'requests repeated', metric: 'repeats', unit: 'requests' },
    { id: 'F24', name: 'longest time not ready', metric: 'unreadySeconds', unit: 's' },
    { id: 'F25', name: 'RSS at the end', metric: 'rssMegabytes', unit: 'MB' },
    { id: 'F26', name: 'growth without garbage', metric: 'heldGrowth', unit: '%' },
    { id: 'F27', name: 'RSS at the end without garbage', metric: 'heldMegabytes', unit: 'MB' },
  ]
}
