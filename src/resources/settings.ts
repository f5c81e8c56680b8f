// The settings of an organization: shape, and how a patch merges. Stored without defaults, so that a
// default can change for everyone who never chose.
import { Type, type Static } from 'typebox'
import { limits } from '../limits.ts'
import { nullable } from './shapes.ts'

const Grace = Type.Integer({
  minimum: 0,
  maximum: limits.offlineGraceSecondsMax,
  default: limits.offlineGraceSecondsDefault,
  description: 'Seconds a device may be away before a device_offline alert.',
})
const Retention = Type.Integer({
  minimum: 1,
  maximum: limits.retentionDaysMax,
  description: 'Days that ended commands, events and audit are kept.',
})
const Percent = Type.Number({ minimum: 1, maximum: 100 })
const GlobalEnrollment = Type.Boolean({
  default: true,
  description: 'May agents enroll with the global secret, or only with keys of a site?',
})

export const OrganizationSettings = Type.Object({
  offlineGraceSeconds: Grace,
  retentionDays: Type.Optional(Retention),
  thresholds: Type.Optional(
    Type.Object({
      cpuPercent: Type.Optional(Percent),
      memoryPercent: Type.Optional(Percent),
      diskPercent: Type.Optional(Percent),
    }),
  ),
  globalEnrollment: GlobalEnrollment,
})

const Removable = Type.Optional(nullable(Percent))

/** Members that are absent stay as they are; null removes one that may be absent. */
export const SettingsPatch = Type.Object(
  {
    offlineGraceSeconds: Type.Optional(Grace),
    retentionDays: Type.Optional(nullable(Retention)),
    thresholds: Type.Optional(
      Type.Object(
        { cpuPercent: Removable, memoryPercent: Removable, diskPercent: Removable },
        { additionalProperties: false },
      ),
    ),
    globalEnrollment: Type.Optional(GlobalEnrollment),
  },
  { additionalProperties: false },
)

export interface Settings {
  offlineGraceSeconds?: number
  retentionDays?: number
  thresholds?: { cpuPercent?: number; memoryPercent?: number; diskPercent?: number }
  globalEnrollment?: boolean
}

/** The settings after a patch. */
export function mergeSettings(
  settings: Settings,
  patch: Static<typeof SettingsPatch> = {},
): Settings {
  const thresholds = present({ ...settings.thresholds, ...patch.thresholds })
  return present({
    ...settings,
    ...patch,
    thresholds: Object.keys(thresholds).length > 0 ? thresholds : null,
  })
}

type Present<T> = { [K in keyof T]?: NonNullable<T[K]> }

/** Without the members that are null. */
function present<T extends object>(members: T): Present<T> {
  const entries = Object.entries(members).filter(([, value]) => value !== null)
  return Object.fromEntries(entries) as Present<T>
}
