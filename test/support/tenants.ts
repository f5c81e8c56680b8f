// Two tenants side by side, each with one of everything, and the people who ask about them.
import type { Role } from '../../src/auth.ts'
import type { TestHub } from './hub.ts'
import { signedIn, type Person } from './people.ts'
import { plant, plantOrganization, type Plant } from './plant.ts'
import { until } from './until.ts'

/** In the texts of one's own organization: of the home site, of the other site. */
export const homeMarker = 'HomeMarkerQx7'
export const awayMarker = 'AwayMarkerKv3'
/** In every text of the other organization. */
export const foreignMarker = 'ForeignMarkerZw9'

export interface Tenants {
  orgId: string
  home: Plant
  /** Another site of the same organization. */
  away: Plant
  foreign: Plant
  /** By role, all of one's own organization but the platform admin. */
  people: Record<Role, Person>
  /** The same roles, who see the home site alone. */
  narrowed: Record<Exclude<Role, 'platform_admin'>, Person>
  /** A technician of the other organization. */
  stranger: Person
}

export async function makeTenants(hub: TestHub): Promise<Tenants> {
  // Everything else works while pg-boss makes its tables; executions wait for them.
  await until('the queue', async () => {
    const rows = await hub.hub.ctx.db
      .query(`select true from pgboss.queue where name = 'executions'`)
      .catch(() => [])
    return rows.length > 0
  })
  const orgId = await plantOrganization(hub, homeMarker)
  const home = await plant(hub, orgId, homeMarker)
  const away = await plant(hub, orgId, awayMarker)
  const otherOrgId = await plantOrganization(hub, foreignMarker)
  const foreign = await plant(hub, otherOrgId, foreignMarker)
  const atHome = { orgId, siteIds: [home.siteId] }
  return {
    orgId,
    home,
    away,
    foreign,
    people: {
      platform_admin: await signedIn(hub, 'platform_admin'),
      org_admin: await signedIn(hub, 'org_admin', { orgId }),
      technician: await signedIn(hub, 'technician', { orgId }),
      viewer: await signedIn(hub, 'viewer', { orgId }),
      auditor: await signedIn(hub, 'auditor', { orgId }),
    },
    narrowed: {
      org_admin: await signedIn(hub, 'org_admin', atHome),
      technician: await signedIn(hub, 'technician', atHome),
      viewer: await signedIn(hub, 'viewer', atHome),
      auditor: await signedIn(hub, 'auditor', atHome),
    },
    stranger: await signedIn(hub, 'technician', { orgId: otherOrgId }),
  }
}
