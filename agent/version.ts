// The version of this agent: of a binary what it was built as, of a checkout that of package.json.

import manifest from '../package.json' with { type: 'json' }

/** Put in by the build of a binary. */
declare const MUSTER_AGENT_VERSION: string | undefined

export const agentVersion: string =
  typeof MUSTER_AGENT_VERSION === 'undefined' ? manifest.version : MUSTER_AGENT_VERSION
