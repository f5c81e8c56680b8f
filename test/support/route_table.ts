// What every route answers to whom, told by hand from the contract: the table that `matrix` compares the hub
// with. A new route gets its row here.
import type { Role } from '../../src/auth.ts'
import { newId } from '../../src/ids.ts'
import type { Plant } from './plant.ts'

/** The role table of the contract, by hand: taking it from src/auth.ts would prove nothing. */
export const may = {
  everyone: ['platform_admin', 'org_admin', 'technician', 'viewer', 'auditor'],
  readers: ['platform_admin', 'org_admin', 'technician', 'auditor'],
  operators: ['platform_admin', 'org_admin', 'technician'],
  admins: ['platform_admin', 'org_admin'],
  auditing: ['platform_admin', 'org_admin', 'auditor'],
  platform: ['platform_admin'],
} as const satisfies Record<string, readonly Role[]>

/** What a request names besides the ids in its path. */
export interface Named {
  body?: unknown
  query?: Record<string, string>
}

export interface Row {
  may: keyof typeof may
  /** What the answer is when it may and the resource is there. */
  ok: string
  /** The resources of the path, in its order; none: a list, or something made. */
  ids?: readonly (keyof Plant)[]
  /** A request that names things of `of`; without one there is nothing to send. */
  named?: (of: Plant) => Named
  /** Who is narrowed to sites is refused as by role. */
  organizationWide?: true
  /** Every site of the organization sees it: the path names nothing that belongs to a site. */
  ofOrganization?: true
  /** It can be done once only to the same thing. */
  once?: true
  /** A list, and whose things it shows to who is narrowed. */
  lists?: 'site' | 'organization'
  /** What `named` answers when it names another organization's things, below one's own path. */
  reaching?: string
}

const inOrganization = ({ orgId }: Plant) => ({ query: { orgId } })
const wide = { organizationWide: true, ofOrganization: true } as const
const webhook = { ...wide, may: 'admins' } as const
const rollout = { ...wide, may: 'admins' } as const
const delivery = ['webhook', 'delivery'] as const

export const table: Record<string, Row> = {
  logout: { may: 'everyone', ok: '200' },
  me: { may: 'everyone', ok: '200' },
  changePassword: {
    may: 'everyone',
    ok: '401 INVALID_CREDENTIALS',
    named: () => ({
      body: { currentPassword: 'not this one', newPassword: 'a long new password' },
    }),
  },

  listDevices: {
    may: 'everyone',
    ok: '200',
    lists: 'site',
    named: inOrganization,
    reaching: '200',
  },
  getDevice: { may: 'everyone', ok: '200', ids: ['device'] },
  updateDevice: {
    may: 'operators',
    ok: '200',
    ids: ['device'],
    named: ({ siteId }) => ({ body: { displayName: 'x', siteId } }),
    reaching: '400 VALIDATION_ERROR',
  },
  decommissionDevice: { may: 'admins', ok: '200', ids: ['device'], once: true },

  createCommand: {
    may: 'operators',
    ok: '202',
    ids: ['device'],
    named: () => ({ body: { action: 'ping' } }),
  },
  listCommands: { may: 'readers', ok: '200', ids: ['device'] },
  getCommand: { may: 'readers', ok: '200', ids: ['command'] },
  cancelCommand: { may: 'operators', ok: '200', ids: ['command'], once: true },

  createTerminal: {
    may: 'operators',
    ok: '409 DEVICE_OFFLINE',
    ids: ['device'],
    named: () => ({ body: { cols: 80, rows: 24 } }),
  },
  listTerminals: { may: 'readers', ok: '200', ids: ['device'] },
  createTerminalTicket: { may: 'operators', ok: '409 CONFLICT', ids: ['terminal'] },
  getTerminalRecording: { may: 'readers', ok: '200', ids: ['terminal'] },

  listAlerts: { may: 'everyone', ok: '200', lists: 'site', named: inOrganization, reaching: '200' },
  getAlert: { may: 'everyone', ok: '200', ids: ['alert'] },
  acknowledgeAlert: { may: 'operators', ok: '200', ids: ['alert'], once: true },
  resolveAlert: { may: 'operators', ok: '200', ids: ['alert'], once: true },

  listOrganizations: { may: 'everyone', ok: '200', lists: 'organization' },
  createOrganization: { may: 'platform', ok: '201', named: () => ({ body: { name: newId() } }) },
  getOrganization: { may: 'everyone', ok: '200', ids: ['orgId'], ofOrganization: true },
  updateOrganization: {
    ...wide,
    may: 'admins',
    ok: '200',
    ids: ['orgId'],
    named: () => ({ body: { settings: { offlineGraceSeconds: 60 } } }),
  },

  listSites: { may: 'everyone', ok: '200', lists: 'site', named: inOrganization, reaching: '200' },
  createSite: {
    ...wide,
    may: 'admins',
    ok: '201',
    named: ({ orgId }) => ({ body: { name: 'x', orgId } }),
    reaching: '404 NOT_FOUND',
  },
  getSite: { may: 'everyone', ok: '200', ids: ['siteId'] },
  updateSite: {
    may: 'admins',
    ok: '200',
    ids: ['siteId'],
    named: () => ({ body: { timezone: 'Europe/Zurich' } }),
  },
  createEnrollmentKey: { may: 'admins', ok: '201', ids: ['siteId'] },
  listEnrollmentKeys: { may: 'admins', ok: '200', ids: ['siteId'] },
  getEnrollmentKey: { may: 'admins', ok: '200', ids: ['siteId', 'key'] },
  revokeEnrollmentKey: { may: 'admins', ok: '200', ids: ['siteId', 'key'] },

  listUsers: {
    may: 'auditing',
    ok: '200',
    lists: 'organization',
    named: inOrganization,
    reaching: '200',
  },
  getUser: { may: 'auditing', ok: '200', ids: ['user'], ofOrganization: true },
  updateUser: {
    ...wide,
    may: 'admins',
    ok: '200',
    ids: ['user'],
    named: ({ siteId }) => ({ body: { siteIds: [siteId] } }),
    reaching: '400 VALIDATION_ERROR',
  },
  inviteUser: {
    ...wide,
    may: 'admins',
    ok: '201',
    named: ({ orgId, siteId }) => ({
      body: { email: `${newId()}@example.org`, role: 'viewer', orgId, siteIds: [siteId] },
    }),
    reaching: '404 NOT_FOUND',
  },

  listScripts: {
    may: 'everyone',
    ok: '200',
    lists: 'organization',
    named: inOrganization,
    reaching: '200',
  },
  createScript: {
    ...wide,
    may: 'admins',
    ok: '201',
    named: ({ orgId }) => ({ body: { name: 'x', language: 'sh', content: 'true', orgId } }),
    reaching: '404 NOT_FOUND',
  },
  getScript: { may: 'everyone', ok: '200', ids: ['script'], ofOrganization: true },
  updateScript: {
    ...wide,
    may: 'admins',
    ok: '200',
    ids: ['script'],
    named: () => ({ body: { description: newId() } }),
  },
  deleteScript: { ...wide, may: 'admins', ok: '200', ids: ['script'], once: true },
  executeScript: {
    may: 'operators',
    ok: '202',
    ids: ['script'],
    ofOrganization: true,
    named: ({ device }) => ({ body: { deviceIds: [device] } }),
    reaching: '202',
  },
  listExecutions: {
    may: 'readers',
    ok: '200',
    lists: 'site',
    named: inOrganization,
    reaching: '200',
  },
  getExecution: { may: 'readers', ok: '200', ids: ['execution'] },
  listExecutionResults: { may: 'readers', ok: '200', ids: ['execution'] },

  createRollout: {
    ...rollout,
    ok: '201',
    named: ({ device }) => ({
      body: {
        version: '2.0.0',
        filter: { deviceIds: [device] },
        groups: [{ percent: 100, successThreshold: 100, errorThreshold: 100 }],
      },
    }),
    once: true,
    reaching: '400 VALIDATION_ERROR',
  },
  listRollouts: {
    ...rollout,
    ok: '200',
    lists: 'organization',
    named: inOrganization,
    reaching: '200',
  },
  getRollout: { ...rollout, ok: '200', ids: ['rollout'] },
  listRolloutDevices: { ...rollout, ok: '200', ids: ['rollout'] },
  pauseRollout: { ...rollout, ok: '200', ids: ['rollout'], once: true },
  resumeRollout: { ...rollout, ok: '200', ids: ['rollout'], once: true },
  abortRollout: { ...rollout, ok: '200', ids: ['rollout'], once: true },

  listAudit: { may: 'auditing', ok: '200', lists: 'site', named: inOrganization, reaching: '200' },
  exportAudit: {
    may: 'auditing',
    ok: '200',
    lists: 'site',
    named: inOrganization,
    reaching: '200',
  },
  verifyAudit: {
    ...wide,
    may: 'auditing',
    ok: '200',
    named: inOrganization,
    reaching: '404 NOT_FOUND',
  },
  streamEvents: { may: 'everyone', ok: '200', named: inOrganization, reaching: '404 NOT_FOUND' },

  listWebhooks: {
    ...webhook,
    ok: '200',
    lists: 'organization',
    named: inOrganization,
    reaching: '200',
  },
  createWebhook: {
    ...webhook,
    ok: '201',
    named: ({ orgId }) => ({
      body: { orgId, url: 'http://127.0.0.1:9/', events: ['agent.upgrade.rolled_back'] },
    }),
    reaching: '404 NOT_FOUND',
  },
  getWebhook: { ...webhook, ok: '200', ids: ['webhook'] },
  updateWebhook: {
    ...webhook,
    ok: '200',
    ids: ['webhook'],
    named: () => ({ body: { events: ['agent.upgrade.succeeded'] } }),
  },
  rotateWebhookSecret: { ...webhook, ok: '200', ids: ['webhook'] },
  deleteWebhook: { ...webhook, ok: '204', ids: ['webhook'], once: true },
  listWebhookDeliveries: { ...webhook, ok: '200', ids: ['webhook'] },
  getWebhookDelivery: { ...webhook, ok: '200', ids: delivery },
  replayWebhookDelivery: { ...webhook, ok: '201', ids: delivery },
  testWebhook: { ...webhook, ok: '201', ids: ['webhook'] },
}

/** What anybody may call: the complete list. A scrape token is not an access token. */
export const open = [
  'acceptInvite',
  'acceptInvitePage',
  'docsFile',
  'docsPage',
  'downloadAgent',
  'enrollAgent',
  'health',
  'listReleases',
  'login',
  'metrics',
  'openapi',
  'ready',
  'refresh',
  'terminalFile',
  'terminalPage',
]
