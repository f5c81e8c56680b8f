// A comparison as one HTML file: how far each figure moved, drawn around the place where nothing moved.
import { describeVerdict, type Comparison } from './compare.ts'
import { page } from './html.ts'
import { figure, html, type Markup } from './markup.ts'
import type { Report } from './report.ts'

export interface ComparedReports {
  a: Report
  b: Report
  compared: readonly Comparison[]
  differing: readonly string[]
  /** As a part. */
  tolerance: number
}

export function renderComparison({
  a,
  b,
  compared,
  differing,
  tolerance,
}: ComparedReports): string {
  const worse = compared.filter(({ verdict }) => verdict === 'worse').length
  const better = compared.filter(({ verdict }) => verdict === 'better').length
  const verdict =
    worse > 0
      ? html`<p class="verdict missed">✗ ${worse} of ${compared.length} figures worse, ${better} better.</p>`
      : html`<p class="verdict met">✓ No figure worse, ${better} better, of ${compared.length}.</p>`
  const body = html`<header><h1>Muster bench: B beside A</h1>
<p class="lead">A: ${a.startedAt} · B: ${b.startedAt} · worse beyond ${figure(tolerance * 100)} %</p></header>
${verdict}
${differing.map((one) => html`<p>⚠ ${one}</p>`)}
<section><h2>Figures</h2><div class="wide"><table><thead><tr><th>row</th><th>what</th><th class="number">A</th><th class="number">B</th><th>unit</th><th class="number">B : A</th><th>worse ← 1 → better</th><th>verdict</th></tr></thead><tbody>
${compared.map((one) => renderRow(one, tolerance))}</tbody></table></div>
<p class="lead">Where a rival ran in both, B : A is of the ratios to it (marked *), which move less with the machine. The pale band is the tolerance; "within the spread" says that rounds of one run differ as much.</p></section>`
  return page('Muster bench: comparison', body)
}

function renderRow(one: Comparison, tolerance: number): Markup {
  const { verdict } = one
  const mark = verdict === 'worse' ? '✗ ' : verdict === 'better' ? '✓ ' : ''
  const kind = verdict === 'worse' ? 'missed' : verdict === 'better' ? 'met' : 'plain'
  return html`<tr><td>${one.id}</td><td>${one.name}</td><td class="number">${figure(one.a)}</td><td class="number">${figure(one.b)}</td><td>${one.unit}</td><td class="number">${figure(one.change)}${one.besideRival ? ' *' : ''}</td><td>${bar(one, kind, tolerance)}</td><td class="${kind}">${mark}${describeVerdict(one)}</td></tr>
`
}

const width = 160
const middle = width / 2
/** Twice as good or bad fills the half. */
const fullAt = Math.log(2)

/** On a scale where twice and half are equally far. */
function bar({ change, better }: Comparison, kind: string, tolerance: number): Markup | undefined {
  if (change === null) return undefined
  const gain = better === 'higher' ? change : 1 / change
  const place = (factor: number) =>
    Math.round(middle + middle * Math.max(-1, Math.min(1, Math.log(factor) / fullAt)))
  const [low, high] = [place(1 / (1 + tolerance)), place(1 + tolerance)]
  const to = place(gain)
  return html`<svg class="bar ${kind}" viewBox="0 0 ${width} 16" aria-hidden="true"><rect class="band" x="${low}" y="0" width="${high - low}" height="16"/><rect class="moved" x="${Math.min(middle, to)}" y="4" width="${Math.max(1, Math.abs(to - middle))}" height="8"/><line class="axis" x1="${middle}" x2="${middle}" y1="0" y2="16"/></svg>`
}
