// Every route of the hub, in the order of the API document.
import type { Route } from '../route.ts'
import { agentRoutes } from './agents.ts'
import { commandRoutes } from './commands.ts'
import { deviceRoutes } from './devices.ts'
import { enrollmentKeyRoutes } from './enrollment_keys.ts'
import { eventRoutes } from './events.ts'
import { healthRoutes } from './health.ts'
import { organizationRoutes } from './organizations.ts'
import { sessionRoutes } from './session.ts'
import { siteRoutes } from './sites.ts'
import { webhookDeliveryRoutes } from './webhook_deliveries.ts'
import { webhookRoutes } from './webhooks.ts'

export const routes: readonly Route[] = [
  ...sessionRoutes,
  ...deviceRoutes,
  ...commandRoutes,
  ...organizationRoutes,
  ...siteRoutes,
  ...enrollmentKeyRoutes,
  ...agentRoutes,
  ...eventRoutes,
  ...webhookRoutes,
  ...webhookDeliveryRoutes,
  ...healthRoutes,
]
