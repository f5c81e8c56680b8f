// The bench's command line: which scenarios to run against what, and where the report goes.
import { closeSync, openSync, writeFileSync } from 'node:fs'
import { readArgs, UsageError, type BenchOptions } from './args.ts'
import { capacityCommand } from './capacity_command.ts'
import { compareCommand } from './compare_command.ts'
import { renderHtml } from './html.ts'
import { describeMachine, loadNow } from './machine.ts'
import { Progress } from './progress.ts'
import { renderMarkdown, renderTable, reportFormat, type Report } from './report.ts'
import { trustAuthority } from './sockets.ts'
import { goalScenarios, peerScenarios, scenarios } from './scenarios/index.ts'
import { markdownSideBySide, renderSideBySide } from './side_by_side.ts'
import { checkOptions, failedOutcome, runScenario, type Outcome, type Scenario } from './suite.ts'

/** Above this something else is running, and the absolute numbers are worth less. */
const quietLoad = 0.5

// Whoever reads has left: what was begun is taken back, as for a signal.
for (const out of [process.stdout, process.stderr]) {
  out.on('error', () => process.emit('SIGTERM', 'SIGTERM'))
}
process.exitCode = await main(process.argv.slice(2))

/** 0: measured. 1: a scenario failed. 2: a goal was missed, with `--check` only. 64: the arguments are wrong. */
async function main(args: string[]): Promise<number> {
  try {
    if (args.includes('--help')) {
      process.stdout.write(usage())
      return 0
    }
    if (args[0] === 'compare') return compareCommand(args.slice(1))
    if (args[0] === 'capacity') return capacityCommand(args.slice(1))
    const options = readArgs(
      args,
      scenarios.map(({ name }) => name),
      {
        goals: goalScenarios.map(({ name }) => name),
        peers: peerScenarios.map(({ name }) => name),
        env: process.env,
      },
    )
    return await run(options)
  } catch (error) {
    if (!(error instanceof UsageError)) throw error
    const help = 'npm run bench -- --help shows all scenarios and flags\n'
    process.stderr.write(`${error.message}\n${args.length === 0 ? `\n${usage()}` : help}`)
    return 64
  }
}

async function run(options: BenchOptions): Promise<number> {
  const progress = new Progress()
  const chosen = scenarios.filter(({ name }) => options.scenarios.includes(name))
  for (const scenario of chosen) checkOptions(scenario, options)
  if (options.ca) trust(options.ca)
  for (const flag of ['json', 'html'] as const)
    if (options[flag]) requireWritable(flag, options[flag])

  const before = loadNow()
  if (before > quietLoad) progress.note(`warning: the load average is ${before} before the start`)
  const startedAt = new Date()
  const outcomes: Outcome[] = []
  const failures: NonNullable<Report['failures']> = []
  for (const scenario of chosen) {
    try {
      outcomes.push(await runScenario(scenario, options, progress))
    } catch (error) {
      failures.push({ scenario: scenario.name, reason: String(error) })
      outcomes.push(failedOutcome(scenario, options))
      progress.note(`${scenario.name} failed: ${String(error)}`)
    }
  }
  progress.clear()
  const report: Report = {
    format: reportFormat,
    startedAt: startedAt.toISOString(),
    seconds: Math.round((Date.now() - startedAt.getTime()) / 1000),
    scenarios: options.scenarios,
    hub: options.foreign?.origin ?? null,
    machine: describeMachine(),
    postgres: outcomes.find(({ postgres }) => postgres !== null)?.postgres ?? null,
    load: { before, after: loadNow() },
    stolen: outcomes.flatMap(({ stolen }) => stolen ?? []),
    rows: outcomes.flatMap(({ rows }) => rows),
    sideBySide: outcomes.flatMap((outcome) => outcome.sideBySide),
    latencies: outcomes.flatMap(({ latencies }) => latencies),
    charts: outcomes.flatMap(({ charts }) => charts),
    faults: outcomes.flatMap(({ faults }) => faults),
    failures,
  }
  const { rows } = report
  if (options.json) writeFileSync(options.json, `${JSON.stringify(report, undefined, 2)}\n`)
  if (options.html) writeFileSync(options.html, renderHtml(report))
  const tables = options.markdown
    ? [renderMarkdown(report), ...report.sideBySide.map(markdownSideBySide)]
    : [renderTable(rows), ...report.sideBySide.map(renderSideBySide)]
  process.stdout.write(`${tables.join('\n\n')}\n`)
  if (failures.length > 0) return 1
  return options.check && rows.some(({ ok }) => ok === false) ? 2 : 0
}

/** Now, and not when all is measured. */
function requireWritable(flag: string, file: string): void {
  try {
    closeSync(openSync(file, 'a'))
  } catch (error) {
    throw new UsageError(`--${flag} ${file} can't be written: ${String(error)}`)
  }
}

function trust(file: string): void {
  try {
    trustAuthority(file)
  } catch (error) {
    throw new UsageError(`--ca ${file}: ${String(error)}`)
  }
}

function usage(): string {
  const width = Math.max(...scenarios.map(({ name }) => name.length))
  const line = ({ name, about }: Scenario) => `  ${name.padEnd(width)}  ${about}\n`
  return `npm run bench -- SCENARIO… [flags]      measures the scenarios named
npm run bench -- goals [--json FILE]    measures all that have goals, one after the other: about an hour
npm run bench -- peers [--json FILE]    the hub beside all that can do parts of its work: limit programs, the
                                        baseline, NATS and Mosquitto where they are installed
npm run bench -- compare A.json B.json  tells what became better and worse from A to B; ends with 1 when
                                        a figure is worse by more than --tolerance PERCENT (10);
                                        --html FILE writes a page
npm run bench -- capacity               what fleets of given sizes need: --agents N[,N…]; --from FILE takes the
                                        costs from a report of growth; --html FILE plots a day of the last

Scenarios:
${scenarios.map(line).join('')}
Flags:
  --agents N        simulated agents (each scenario has its own default)
  --seconds N       length of one measurement; --minutes N says the same
  --faults SECONDS  soak: so often a thread is killed, PostgreSQL restarted, frozen or killed, a third of
                    the agents loses its sockets, or commands flood in; --check and one round go with it
  --rate N[,N…]     per second, of what the scenario's load consists of
  --beside A[,B…]   what stands beside the hub: limit, baseline, nats, mosquitto (what its goals are about)
  --rounds N        measurements of each side, in turn; the median counts (3)
  --generators N    processes per fleet (2); twice as many must change nothing
  --json FILE       writes the report as JSON
  --html FILE       writes it as one HTML file, with plots
  --markdown        prints the table as markdown
  --check           ends with 2 when a goal is missed

Against a hub that runs already, measured from outside only:
  --url ORIGIN                  http:// or https://
  --email EMAIL                 or BENCH_EMAIL in the environment
  --password PASSWORD           or BENCH_PASSWORD
  --enrollment-secret SECRET    or BENCH_ENROLLMENT_SECRET
  --ca FILE                     authorities to trust beside the machine's, as PEM
`
}
