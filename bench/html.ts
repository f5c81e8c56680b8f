// A report as one HTML file that needs nothing else: no script, no font, no address. It can be mailed, kept
// beside the JSON it was made of, and opened in ten years.
import type { Chart, FaultFinding, LatencyFinding } from './findings.ts'
import { figure, html, Markup, type Markup as Piece } from './markup.ts'
import { renderChart, renderValues } from './plot.ts'
import { describeStolen, type Report } from './report.ts'
import type { Row } from './rows.ts'
import { describeMissing, titleOf, type SideBySide } from './side_by_side.ts'

export function renderHtml(report: Report): string {
  const goals = report.rows.filter(({ goal }) => goal !== null)
  const figures = report.rows.filter(({ goal }) => goal === null)
  const body = html`<header>
<h1>Muster bench</h1>
<p class="lead">${report.scenarios.join(', ')} · ${readable(report.startedAt)} · ${duration(report.seconds)}</p>
</header>
${failed(report.failures ?? [])}
${verdict(goals)}
${goals.length > 0 ? html`<section><h2>Goals</h2>${rowTable(goals, true)}</section>` : undefined}
${figures.length > 0 ? html`<section><h2>Figures</h2>${rowTable(figures, false)}</section>` : undefined}
${besides(report.sideBySide)}
${chartList(report.charts)}
${faults(report.faults ?? [])}
${latencies(report.latencies)}
<section><h2>Environment</h2>${environment(report)}</section>`
  return page('Muster bench', body)
}

/** A whole page around a body; the policy in its head lets it load nothing, whatever is in it. */
export function page(title: string, body: Piece): string {
  return html`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>${title}</title>
<style>${new Markup(style)}</style>
</head>
<body><main>
${body}
</main></body>
</html>
`.text
}

function failed(failures: NonNullable<Report['failures']>): Piece | undefined {
  if (failures.length === 0) return undefined
  const items = failures.map(({ scenario, reason }) => html`<li><b>${scenario}</b>: ${reason}</li>`)
  return html`<section><h2>Not measured</h2><ul class="missed">${items}</ul></section>`
}

function verdict(goals: readonly Row[]): Piece | undefined {
  // What was not measured is told by its failure.
  const judged = goals.filter(({ ok, value }) => ok !== null && value !== null)
  if (judged.length === 0) return undefined
  const missed = judged.filter(({ ok }) => ok === false)
  return missed.length === 0
    ? html`<p class="verdict met">✓ All goals met: ${judged.length} of ${judged.length}.</p>`
    : html`<p class="verdict missed">✗ ${missed.length} of ${judged.length} goals missed: ${missed.map(({ id }) => id).join(', ')}.</p>`
}

function rowTable(rows: readonly Row[], withGoals: boolean): Piece {
  const beside = rows.some(({ limit }) => limit !== null)
  return html`<div class="wide"><table><thead><tr><th>row</th><th>what</th><th class="number">hub</th>${
    beside ? html`<th class="number">limit</th><th class="number">ratio</th>` : undefined
  }<th>unit</th>${withGoals ? html`<th>goal</th><th>met</th>` : undefined}</tr></thead><tbody>
${rows.map(
  (
    row,
  ) => html`<tr><td>${row.id}</td><td>${row.name}</td><td class="number">${figure(row.value)}</td>${
    beside
      ? html`<td class="number">${figure(row.limit)}</td><td class="number">${figure(row.ratio)}</td>`
      : undefined
  }<td>${row.unit}</td>${withGoals ? html`<td>${row.goal ?? ''}</td>${met(row)}` : undefined}</tr>
`,
)}</tbody></table></div>`
}

/** Never by colour alone. */
function met({ ok, value }: Row): Piece {
  if (value === null) return html`<td>not measured</td>`
  if (ok === null) return html`<td>not judged</td>`
  return ok ? html`<td class="met">✓ yes</td>` : html`<td class="missed">✗ no</td>`
}

function besides(all: readonly SideBySide[]): Piece | undefined {
  if (all.length === 0) return undefined
  return html`<section><h2>Side by side</h2>${all.map(
    ({ scenario, figures, programs, missing }) => html`<h3>${scenario}</h3>
<div class="wide"><table><thead><tr><th>program</th>${figures.map(
      ({ name, unit }) => html`<th class="number">${name}, ${unit}</th>`,
    )}<th>what it is</th></tr></thead><tbody>
${programs.map(
  (program) => html`<tr><td>${titleOf(program)}</td>${program.values.map(
    (value) => html`<td class="number">${figure(value)}</td>`,
  )}<td>${program.about}</td></tr>
`,
)}</tbody></table></div>${missing.length > 0 ? html`<p>${describeMissing(missing) ?? ''}</p>` : undefined}
`,
  )}</section>`
}

/** The charts under the names of their scenarios, each with its values. */
export function chartList(all: readonly Chart[]): Piece[] {
  const scenarios = [...new Set(all.map(({ scenario }) => scenario))]
  return scenarios.map(
    (name) => html`<section><h2>${name}</h2>
${all
  .filter(
    ({ scenario, lines }) => scenario === name && lines.some(({ points }) => points.length > 0),
  )
  .map(
    (chart) => html`<figure><figcaption>${chart.title}</figcaption>
<div class="wide">${renderChart(chart)}</div>
<details><summary>values</summary>${renderValues(chart)}</details></figure>
`,
  )}</section>
`,
  )
}

function latencies(all: readonly LatencyFinding[]): Piece | undefined {
  if (all.length === 0) return undefined
  const columns = ['p50Ms', 'p90Ms', 'p99Ms', 'p999Ms', 'maxMs'] as const
  const names = ['p50', 'p90', 'p99', 'p99.9', 'max']
  return html`<section><h2>Latencies in ms, all rounds</h2><div class="wide"><table><thead><tr><th>scenario</th><th>what</th><th>side</th><th class="number">count</th>${names.map(
    (name) => html`<th class="number">${name}</th>`,
  )}</tr></thead><tbody>
${all.map(
  (
    one,
  ) => html`<tr><td>${one.scenario}</td><td>${one.name}</td><td>${one.side}</td><td class="number">${figure(one.count)}</td>${columns.map(
    (column) => html`<td class="number">${figure(one[column])}</td>`,
  )}</tr>
`,
)}</tbody></table></div></section>`
}

function faults(all: readonly FaultFinding[]): Piece | undefined {
  if (all.length === 0) return undefined
  const heard = (counts: Record<string, number>) =>
    Object.entries(counts)
      .map(([status, count]) => `${count} × ${status}`)
      .join(', ')
  return html`<section><h2>Faults</h2><div class="wide"><table><thead><tr><th class="number">at, s</th><th>what</th><th class="number">unready, s</th><th>requests repeated until the next</th></tr></thead><tbody>
${all.map(
  (
    one,
  ) => html`<tr><td class="number">${figure(Math.round(one.atSeconds))}</td><td>${one.name}</td><td class="number">${figure(one.unreadySeconds)}</td><td>${heard(one.heard)}</td></tr>
`,
)}</tbody></table></div></section>`
}

function environment({ machine, load, stolen, hub, postgres }: Report): Piece {
  const facts: [string, string][] = [
    ['Hub', hub ?? 'started by the bench, on this machine'],
    [
      hub === null ? 'Machine' : 'Machine of the load',
      `${machine.cores} cores, ${machine.memoryGiB} GiB`,
    ],
    ['CPU', machine.cpu],
    ['Linux', machine.kernel],
    ['Node', machine.node],
    ['PostgreSQL', postgres ?? 'not known from outside'],
    ['Load average', `${load.before} before, ${load.after} after`],
    ['Steal', describeStolen(stolen)],
  ]
  return html`<dl>${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`
}

function readable(iso: string): string {
  return `${iso.slice(0, 10)} ${iso.slice(11, 16)} UTC`
}

function duration(seconds: number): string {
  return seconds < 120 ? `${seconds} s` : `${Math.round(seconds / 60)} min`
}

const style = `
:root {
  color-scheme: light dark;
  --page: #f7f8fa; --card: #ffffff; --ink: #1b1f24; --soft: #57606a; --rule: #d8dee4; --grid: #e7ebef;
  --met: #1a7f37; --missed: #b42318;
  --s0: #1f5fbf; --s1: #b4530a; --s2: #0f7f5f; --s3: #7b3fb3; --s4: #a8325e; --s5: #5b6470;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #0f1318; --card: #171c23; --ink: #e6eaef; --soft: #9aa5b1; --rule: #2e3640; --grid: #252c35;
    --met: #57c27a; --missed: #ff8a80;
    --s0: #74acff; --s1: #f5a05c; --s2: #52c99d; --s3: #bd98f5; --s4: #f285ac; --s5: #a7b0ba;
  }
}
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 860px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { margin: 0; font-size: 26px; }
h2 { margin: 36px 0 12px; font-size: 18px; }
h3 { margin: 20px 0 6px; font-size: 15px; }
.lead { margin: 4px 0 0; color: var(--soft); }
.verdict { margin: 20px 0 0; padding: 10px 14px; border-left: 4px solid; background: var(--card); font-weight: 600; }
.met { color: var(--met); }
.missed { color: var(--missed); }
td.met, td.missed { white-space: nowrap; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 10px 5px 0; border-bottom: 1px solid var(--rule); text-align: left; vertical-align: top; }
th { color: var(--soft); font-weight: 500; }
.number { text-align: right; white-space: nowrap; }
th.number { white-space: normal; }
figure { margin: 0 0 20px; padding: 14px 16px 10px; background: var(--card); border: 1px solid var(--rule); border-radius: 8px; }
figcaption { font-weight: 600; }
details { color: var(--soft); font-size: 13px; }
details table { width: auto; font-size: 13px; }
summary { cursor: pointer; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(220px, 1fr)); gap: 12px 20px; margin: 0; }
dt { color: var(--soft); font-size: 13px; }
dd { margin: 0; }
svg { display: block; width: 100%; min-width: 560px; height: auto; font: 13px system-ui, sans-serif; }
svg text { fill: var(--soft); }
svg .title { text-anchor: middle; }
svg .middle { text-anchor: middle; }
svg .end { text-anchor: end; }
svg .value { font-variant-numeric: tabular-nums; }
svg .grid { stroke: var(--grid); }
svg .axis, svg .tick { stroke: var(--soft); }
svg .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
svg .dot { stroke: var(--card); stroke-width: 1.5; }
svg .label { font-weight: 600; }
svg .mark { stroke: var(--soft); stroke-dasharray: 2 3; }
svg .place { fill: var(--ink); opacity: 0; }
svg .place:hover { opacity: 0.09; }
${Array.from({ length: 6 }, (_, slot) => `svg .line.s${slot} { stroke: var(--s${slot}); } svg .dot.s${slot}, svg .label.s${slot} { fill: var(--s${slot}); }`).join('\n')}
svg.bar { width: 160px; min-width: 160px; height: 16px; }
svg.bar .band { fill: var(--grid); }
svg.bar .moved { fill: var(--soft); }
svg.bar.met .moved { fill: var(--met); }
svg.bar.missed .moved { fill: var(--missed); }
@media print { body { background: none; } details { display: none; } figure { break-inside: avoid; } }
`
