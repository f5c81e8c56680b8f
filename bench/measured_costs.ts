// What operations cost on the machine of docs/capacity.md: the rows of `bench growth` at its largest size. Your
// own come from `npm run bench -- growth --json report.json` and `npm run bench -- capacity --from report.json`.
import type { Costs, OperationCost } from './capacity.ts'
import type { Report } from './report.ts'

/** Rows of `growth`, by what they are about. */
const rowOf = { connect: 'G1', rest: 'G2', command: 'G4', page: 'G5' } as const

/**
 * Bytes on the wire, counted from the protocol: a TLS handshake with its certificate and an upgrade with its
 * welcome; a beat of 100 bytes in 30 s, with the records and packets around it and what confirms them; a command
 * with its three answers and its request; a page of 50 devices.
 */
const wireBytes = { connect: 7000, rest: 9, command: 3200, page: 40_000 } as const

export const measuredCosts: Costs = {
  connect: {
    hubUs: 161,
    frontUs: 129,
    postgresUs: 86,
    walBytes: 1893,
    wireBytes: wireBytes.connect,
  },
  // 1.7 bytes, and 8.1 right after a checkpoint, of which there is one in five minutes.
  rest: { hubUs: 2.8, frontUs: 1.7, postgresUs: 0.8, walBytes: 3, wireBytes: wireBytes.rest },
  command: {
    hubUs: 203,
    frontUs: 130,
    postgresUs: 221,
    walBytes: 3831,
    wireBytes: wireBytes.command,
  },
  page: { hubUs: 348, frontUs: 292, postgresUs: 803, walBytes: 59, wireBytes: wireBytes.page },
  hubMegabytes: 141,
  agentKilobytes: 1.3,
  commandDiskBytes: 2000,
}

/** Of a report with the scenario `growth`; what it does not hold is as measured. Throws when it lacks a row. */
export function costsOf({ rows }: Pick<Report, 'rows'>): Costs {
  const value = (id: string): number | undefined =>
    rows.find((row) => row.id === id)?.value ?? undefined
  const needed = (id: string): number => {
    const found = value(id)
    if (found === undefined) throw new Error(`there is no figure ${id}: measure with growth`)
    return found
  }
  const cost = (of: keyof typeof rowOf): OperationCost => {
    const id = rowOf[of]
    const postgresUs = needed(`${id}p`)
    return {
      hubUs: needed(id) - postgresUs,
      frontUs: needed(`${id}f`),
      postgresUs,
      walBytes: needed(`${id}w`),
      wireBytes: wireBytes[of],
    }
  }
  return {
    ...measuredCosts,
    connect: cost('connect'),
    rest: cost('rest'),
    command: cost('command'),
    page: cost('page'),
    agentKilobytes: value('P2') ?? measuredCosts.agentKilobytes,
    hubMegabytes: value('P13b') ?? measuredCosts.hubMegabytes,
  }
}
