// upgrade_agent: to a version that the hub offers. What it takes stands in agent/upgrade/.

import { PayloadError, requireText } from '../action.ts'
import type { Action } from '../action.ts'
import { prepareUpgrade } from '../upgrade/prepare.ts'
import { isVersion } from '../../src/versions.ts'

export const upgradeAgent: Action = {
  concurrent: false,
  repeatable: false,
  async run(payload, context) {
    const version = requireText(payload, 'version')
    if (!isVersion(version)) throw new PayloadError('payload: version must be like 1.2.3')
    return prepareUpgrade(version, context)
  },
}
