// Every route of the hub, in the order of the API document.
import type { Route } from '../route.ts'
import { agentRoutes } from './agents.ts'
import { alertRoutes } from './alerts.ts'
import { auditRoutes } from './audit.ts'
import { commandRoutes } from './commands.ts'
import { deviceRoutes } from './devices.ts'
import { enrollmentKeyRoutes } from './enrollment_keys.ts'
import { executionRoutes } from './executions.ts'
import { eventRoutes } from './events.ts'
import { healthRoutes } from './health.ts'
import { invitationRoutes } from './invitations.ts'
import { organizationRoutes } from './organizations.ts'
import { pageRoutes } from './pages.ts'
import { releaseRoutes } from './releases.ts'
import { rolloutRoutes } from './rollouts.ts'
import { scriptRoutes } from './scripts.ts'
import { sessionRoutes } from './session.ts'
import { siteRoutes } from './sites.ts'
import { terminalRoutes } from './terminals.ts'
import { userRoutes } from './users.ts'
import { webhookDeliveryRoutes } from './webhook_deliveries.ts'
import { webhookRoutes } from './webhooks.ts'

export const routes: readonly Route[] = [
  ...sessionRoutes,
  ...deviceRoutes,
  ...commandRoutes,
  ...terminalRoutes,
  ...alertRoutes,
  ...organizationRoutes,
  ...siteRoutes,
  ...enrollmentKeyRoutes,
  ...userRoutes,
  ...invitationRoutes,
  ...scriptRoutes,
  ...executionRoutes,
  ...auditRoutes,
  ...agentRoutes,
  ...releaseRoutes,
  ...rolloutRoutes,
  ...eventRoutes,
  ...webhookRoutes,
  ...webhookDeliveryRoutes,
  ...healthRoutes,
  ...pageRoutes,
]
