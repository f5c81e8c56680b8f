// `bench compare A.json B.json`: what became better and worse, as a table, as a page, as an exit code.
import { readFileSync, writeFileSync } from 'node:fs'
import { parseArgs } from 'node:util'
import { UsageError } from './args.ts'
import {
  compareReports,
  describeVerdict,
  differences,
  isNoise,
  type Comparison,
} from './compare.ts'
import { renderComparison } from './compare_html.ts'
import { figure } from './markup.ts'
import { alignColumns, reportFormat, type Report } from './report.ts'

/** A figure may be this much worse unless told otherwise: less is noise on most machines. */
const tolerancePercentDefault = 10

/** 0: nothing is worse than the tolerance allows. 1: something is. Throws UsageError. */
export function compareCommand(args: readonly string[]): number {
  const { files, tolerance, html } = readCompareArgs(args)
  const [a, b] = [readReport(files[0]), readReport(files[1])]
  const compared = compareReports(a, b, tolerance)
  const differing = differences(a, b)
  for (const difference of differing) process.stderr.write(`warning: ${difference}\n`)
  process.stdout.write(`${renderComparisonTable(compared)}\n`)
  if (html) writeFileSync(html, renderComparison({ a, b, compared, differing, tolerance }))
  const worse = compared.filter(({ verdict }) => verdict === 'worse')
  if (worse.some(isNoise)) {
    process.stderr.write('some of what is worse is within the spread of the rounds: run more\n')
  }
  return worse.length > 0 ? 1 : 0
}

/** As text for a terminal. */
export function renderComparisonTable(compared: readonly Comparison[]): string {
  const headings = ['row', 'what', 'A', 'B', 'unit', 'B : A', 'better', 'spread', 'verdict']
  const lines = compared.map((one) => [
    one.id,
    one.name,
    figure(one.a),
    figure(one.b),
    one.unit,
    `${figure(one.change)}${one.besideRival ? ' *' : ''}`,
    one.better,
    one.spread === null ? '' : `± ${figure(one.spread * 50)} %`,
    describeVerdict(one),
  ])
  const table = alignColumns([headings, ...lines], ['A', 'B', 'B : A', 'spread'])
  const starred = compared.some(({ besideRival }) => besideRival)
  return starred ? `${table}\n\n* of the ratios to the rival in the same run` : table
}

interface CompareArgs {
  files: [a: string, b: string]
  /** As a part. */
  tolerance: number
  html: string | undefined
}

function readCompareArgs(args: readonly string[]): CompareArgs {
  const { values, positionals } = parse(args)
  const [a, b, more] = positionals
  if (a === undefined || b === undefined || more !== undefined) {
    throw new UsageError('compare takes two reports: compare A.json B.json')
  }
  const text = values.tolerance ?? String(tolerancePercentDefault)
  if (!/^\d{1,4}(\.\d+)?$/.test(text)) {
    throw new UsageError(`--tolerance is no percentage: "${text}"`)
  }
  return { files: [a, b], tolerance: Number(text) / 100, html: values.html }
}

function parse(args: readonly string[]) {
  const options = { tolerance: { type: 'string' }, html: { type: 'string' } } as const
  try {
    return parseArgs({ args: [...args], options, allowPositionals: true })
  } catch (error) {
    throw new UsageError(error instanceof Error ? (error.message.split('. ')[0] ?? '') : '')
  }
}

/** Throws UsageError. */
export function readReport(file: string): Report {
  let report: Partial<Report>
  try {
    report = JSON.parse(readFileSync(file, 'utf8')) as Partial<Report>
  } catch (error) {
    const isMissing = error instanceof Error && 'code' in error && error.code === 'ENOENT'
    throw new UsageError(
      isMissing ? `there is no file ${file}` : `${file} can't be read: ${String(error)}`,
    )
  }
  if (report.format !== reportFormat || !Array.isArray(report.rows)) {
    throw new UsageError(`${file} is no report of this bench (format ${reportFormat})`)
  }
  // Its own writer's shape, which the format stands for.
  return report as Report
}
