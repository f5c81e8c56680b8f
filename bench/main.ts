// The bench's command line: which scenarios to run against what, and where the report goes.
import { writeFileSync } from 'node:fs'
import { readArgs, UsageError, type BenchOptions } from './args.ts'
import { describeMachine, loadNow } from './machine.ts'
import { Progress } from './progress.ts'
import { renderMarkdown, renderTable, type Report } from './report.ts'
import type { Row } from './rows.ts'
import { scenarios } from './scenarios/index.ts'
import { failedRows, runScenario, type Scenario } from './suite.ts'

/** Above this something else is running, and the absolute numbers are worth less. */
const quietLoad = 0.5

process.exitCode = await main(process.argv.slice(2))

/** 0: measured. 1: a scenario failed. 64: the arguments are wrong. A missed goal is a result. */
async function main(args: string[]): Promise<number> {
  try {
    const options = readArgs(
      args,
      scenarios.map(({ name }) => name),
    )
    if (options.help) {
      process.stdout.write(usage())
      return 0
    }
    return await run(options)
  } catch (error) {
    if (!(error instanceof UsageError)) throw error
    process.stderr.write(`${error.message}\n\n${usage()}`)
    return 64
  }
}

async function run(options: BenchOptions): Promise<number> {
  const progress = new Progress()
  const chosen = scenarios.filter(({ name }) => options.scenarios.includes(name))
  const local = chosen.find(({ foreign }) => !foreign)
  if (options.foreign && local)
    throw new UsageError(`"${local.name}" starts its own hub: drop --url`)

  const before = loadNow()
  if (before > quietLoad) progress.note(`warning: the load average is ${before} before the start`)
  const rows: Row[] = []
  let failures = 0
  for (const scenario of chosen) {
    try {
      rows.push(...(await runScenario(scenario, options, progress)))
    } catch (error) {
      failures++
      rows.push(...failedRows(scenario))
      progress.note(`${scenario.name} failed: ${String(error)}`)
    }
  }
  progress.clear()
  const report: Report = {
    machine: describeMachine(),
    load: { before, after: loadNow() },
    rows,
  }
  if (options.json) writeFileSync(options.json, `${JSON.stringify(report, undefined, 2)}\n`)
  process.stdout.write(`${options.markdown ? renderMarkdown(report) : renderTable(rows)}\n`)
  return failures > 0 ? 1 : 0
}

function usage(): string {
  const width = Math.max(...scenarios.map(({ name }) => name.length))
  const line = ({ name, about }: Scenario) => `  ${name.padEnd(width)}  ${about}\n`
  return `npm run bench -- SCENARIO… [flags]      measures the scenarios named
npm run bench -- goals --json FILE      measures all of them, one after the other

Scenarios:
${scenarios.map(line).join('')}
Flags:
  --agents N        simulated agents (each scenario has its own default)
  --seconds N       length of one measurement
  --rounds N        measurements of each side, in turn; the median counts (3)
  --generators N    processes per fleet (2); twice as many must change nothing
  --json FILE       writes the report as JSON
  --markdown        prints the table as markdown

Against a hub that runs already, measured from outside only:
  --url ORIGIN --email EMAIL --password PASSWORD --enrollment-secret SECRET
`
}
