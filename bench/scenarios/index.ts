// Every scenario, in the order in which `goals` runs them. A new row of the goals is a new file here.
import type { Scenario } from '../suite.ts'
import { accept } from './accept.ts'
import { clusterScenarios } from './cluster.ts'
import { concurrency } from './concurrency.ts'
import { connect } from './connect.ts'
import { downloads } from './downloads.ts'
import { auditExport } from './export.ts'
import { heartbeats } from './heartbeats.ts'
import { growth } from './growth.ts'
import { largeLists } from './lists.ts'
import { hostile } from './hostile.ts'
import { isolation } from './isolation.ts'
import { mixed } from './mixed.ts'
import { nodes } from './nodes.ts'
import { parallel } from './parallel.ts'
import { rates } from './rates.ts'
import { roundTrip } from './round_trip.ts'
import { rss } from './rss.ts'
import { script } from './script.ts'
import { start } from './start.ts'
import { soak } from './soak.ts'
import { steady } from './steady.ts'
import { terminal } from './terminal.ts'

/** What has goals beside limits and rivals. */
export const goalScenarios: readonly Scenario[] = [
  heartbeats,
  rss,
  connect,
  accept,
  roundTrip,
  script,
  auditExport,
  downloads,
  isolation,
  largeLists,
  growth,
  parallel,
  terminal,
  start,
]

export const scenarios: readonly Scenario[] = [
  ...goalScenarios,
  steady,
  rates,
  concurrency,
  mixed,
  hostile,
  soak,
  ...clusterScenarios,
  nodes,
]

/** What others do too, in part at least. */
export const peerScenarios: readonly Scenario[] = scenarios.filter(({ guests }) => guests)
