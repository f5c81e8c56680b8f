// The version of this agent, from package.json: one place for hub and agent.

import manifest from '../package.json' with { type: 'json' }

export const agentVersion: string = manifest.version
