// `bench capacity`: what fleets of given sizes need, as a table, and a day of the largest as plots.
import { writeFileSync } from 'node:fs'
import { parseArgs } from 'node:util'
import { UsageError } from './args.ts'
import { defaultWorkload, planFor, type Costs, type Moment, type Plan } from './capacity.ts'
import { readReport } from './compare_command.ts'
import type { Chart } from './findings.ts'
import { chartList, page } from './html.ts'
import { figure, html } from './markup.ts'
import { costsOf, measuredCosts } from './measured_costs.ts'
import { alignColumns } from './report.ts'

const agentsDefault = '10000,100000,1000000,10000000'
const agentsMax = 100_000_000
const sizesMax = 12
/** Steps of the day that a plot shows. */
const placesMax = 288

/** Prints the table; throws UsageError. */
export function capacityCommand(args: readonly string[]): number {
  const { sizes, from, htmlFile, markdown } = readCapacityArgs(args)
  const costs = from === undefined ? measuredCosts : costsFrom(from)
  const plans = sizes.map((agents) => ({
    agents,
    plan: planFor(costs, { ...defaultWorkload, agents }),
  }))
  const lines = [headings, ...plans.map(({ agents, plan }) => cells(agents, plan))]
  process.stdout.write(`${markdown ? asMarkdown(lines) : alignColumns(lines, headings)}\n`)
  const last = plans.at(-1)
  if (htmlFile && last) writeFileSync(htmlFile, renderDay(last.agents, last.plan))
  return 0
}

const headings = [
  'agents',
  'hubs',
  "front's peak",
  'hub cores',
  'GB per hub',
  'PostgreSQL cores',
  'WAL MB/s',
  'WAL GB/day',
  'disk GB/day',
  'Mbit/s',
  'hub lost: back in s',
  'script on all in s',
  'databases',
  'nearest bound',
]

function cells(agents: number, { hubs, day, databases, bottleneck }: Plan): string[] {
  const { peak } = day
  return [
    agents.toLocaleString('en'),
    String(hubs),
    `${Math.round(peak.front * 100)} %`,
    figure(peak.hubCores),
    figure(day.hubMegabytes / 1024),
    figure(peak.postgresCores),
    figure(peak.walMegabytes),
    figure(day.walGigabytes),
    figure(day.diskGigabytes),
    figure(peak.wireMegabits),
    String(day.backSeconds),
    String(day.scriptSeconds),
    String(databases),
    `${bottleneck.name}, ${Math.round(bottleneck.use * 100)} %`,
  ]
}

function asMarkdown([names = [], ...lines]: readonly string[][]): string {
  return [names, names.map((_, column) => (column === names.length - 1 ? '---' : '---:')), ...lines]
    .map((line) => `| ${line.join(' | ')} |`)
    .join('\n')
}

function renderDay(agents: number, { hubs, day }: Plan): string {
  const every = Math.max(1, Math.ceil(day.moments.length / placesMax))
  const line = (name: string, of: (moment: Moment) => number) => ({
    name,
    // The highest of each stretch: a peak of seconds must not fall between two places.
    points: stretches(day.moments, every).map((stretch): [number, number] => [
      stretch[0]?.hour ?? 0,
      Math.max(...stretch.map(of)),
    ]),
  })
  const chart = (title: string, unit: string, lines: Chart['lines']): Chart => ({
    scenario: 'capacity',
    title,
    x: { name: 'hour', unit: '' },
    y: { name: unit, unit: '' },
    lines,
  })
  const charts = [
    chart('Agents', 'agents', [line('connected', ({ online }) => online)]),
    chart('Work', 'per second', [
      line('connects', ({ connects }) => connects),
      line('commands', ({ commands }) => commands),
    ]),
    chart('CPU', 'cores', [
      line('all hubs', ({ hubCores }) => hubCores),
      line('PostgreSQL', ({ postgresCores }) => postgresCores),
      line('one front', ({ front }) => front),
    ]),
    chart('Bandwidth', 'MB/s', [
      line('WAL', ({ walMegabytes }) => walMegabytes),
      line('agents and operators', ({ wireMegabits }) => wireMegabits / 8),
    ]),
  ]
  const title = `A day of ${agents.toLocaleString('en')} agents on ${hubs} hubs`
  return page(title, html`<header><h1>${title}</h1></header>${chartList(charts)}`)
}

function stretches<T>(all: readonly T[], length: number): T[][] {
  const found: T[][] = []
  for (let at = 0; at < all.length; at += length) found.push(all.slice(at, at + length))
  return found
}

function costsFrom(file: string): Costs {
  const report = readReport(file)
  try {
    return costsOf(report)
  } catch (error) {
    throw new UsageError(`${file}: ${error instanceof Error ? error.message : String(error)}`)
  }
}

function readCapacityArgs(args: readonly string[]) {
  const { agents = agentsDefault, from, html: htmlFile, markdown = false } = parse(args)
  const sizes = agents.split(',').map(Number)
  const isSize = (size: number) => Number.isInteger(size) && size >= 1 && size <= agentsMax
  if (sizes.length > sizesMax || !sizes.every(isSize)) {
    throw new UsageError(
      `--agents takes up to ${sizesMax} numbers from 1 to ${agentsMax}, with commas between: "${agents}"`,
    )
  }
  return { sizes, from, htmlFile, markdown }
}

function parse(args: readonly string[]) {
  const options = {
    agents: { type: 'string' },
    from: { type: 'string' },
    html: { type: 'string' },
    markdown: { type: 'boolean' },
  } as const
  try {
    return parseArgs({ args: [...args], options }).values
  } catch (error) {
    throw new UsageError(error instanceof Error ? (error.message.split('. ')[0] ?? '') : '')
  }
}
