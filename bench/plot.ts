// One chart as inline SVG: lines over an axis, named at their ends, with the values of each place as a title.
// Colours are CSS variables of the page, so that a chart follows its light and dark.
import type { Axis, Chart, Line } from './findings.ts'
import { figure, html, type Markup } from './markup.ts'

const canvas = { width: 788, height: 320 }
const margin = { top: 14, right: 132, bottom: 46, left: 68 }
const inner = {
  right: canvas.width - margin.right,
  bottom: canvas.height - margin.bottom,
}
/** Lines with as few points as this show them; more would hide the line. */
const dotsMax = 24
const labelGap = 15
/** A scale of tenfold steps is worth its oddness from here on. */
const logSpanMin = 20

/** Differences below are noise of the arithmetic, and no axis. */
const tiny = 1e-9

interface Scale {
  at(value: number): number
  ticks: number[]
}

export function renderChart(chart: Chart): Markup {
  const lines = chart.lines.filter(({ points }) => points.length > 0)
  const all = lines.flatMap(({ points }) => points)
  const x = scale(
    chart.x,
    all.map((point) => point[0]),
    [margin.left, inner.right],
    chart.x.unit === 's' ? 0 : undefined,
  )
  const y = scale(
    chart.y,
    all.map((point) => point[1]),
    [inner.bottom, margin.top],
    0,
  )
  return html`<svg viewBox="0 0 ${canvas.width} ${canvas.height}" role="img" aria-label="${chart.title}">
${y.ticks.map((tick) => yTick(y.at(tick), tick))}
${x.ticks.map((tick) => xTick(x.at(tick), tick))}
<line class="axis" x1="${margin.left}" x2="${inner.right}" y1="${inner.bottom}" y2="${inner.bottom}"/>
<text class="title" x="${(margin.left + inner.right) / 2}" y="${canvas.height - 8}">${nameOf(chart.x)}</text>
<text class="title" transform="translate(15 ${(margin.top + inner.bottom) / 2}) rotate(-90)">${nameOf(chart.y)}</text>
${marks(chart, x)}
${lines.map((line, slot) => drawn(line, slot, x, y))}
${labels(lines, y)}
${strips(chart, lines, x)}
</svg>`
}

/** The values behind a chart, for those who want them exact or can't see it. */
export function renderValues({ x, y, lines }: Chart): Markup {
  const at = placesOf(lines)
  return html`<table><thead><tr><th class="number">${nameOf(x)}</th>${lines.map(
    ({ name }) => html`<th class="number">${name}${y.unit ? `, ${y.unit}` : ''}</th>`,
  )}</tr></thead><tbody>
${at.map(
  (place) =>
    html`<tr><td class="number">${figure(place)}</td>${lines.map(
      (line) => html`<td class="number">${figure(valueAt(line, place) ?? null)}</td>`,
    )}</tr>`,
)}</tbody></table>`
}

function drawn({ points }: Line, slot: number, x: Scale, y: Scale): Markup {
  const places = points.map(([px, py]) => [round(x.at(px)), round(y.at(py))] as const)
  const path = places.map(([px, py]) => `${px},${py}`).join(' ')
  const dots =
    points.length > dotsMax
      ? undefined
      : places.map(([px, py]) => html`<circle class="dot s${slot}" cx="${px}" cy="${py}" r="3.5"/>`)
  return html`<polyline class="line s${slot}" points="${path}"/>${dots}`
}

/** Names at the ends of lines, moved apart where lines end close to each other. */
function labels(lines: readonly Line[], y: Scale): Markup[] {
  const wanted = lines
    .map(({ name, points }, slot) => ({ name, slot, y: y.at(points.at(-1)![1]) }))
    .toSorted((a, b) => a.y - b.y || b.slot - a.slot)
  let above = -Infinity
  for (const label of wanted) above = label.y = Math.max(label.y, above + labelGap)
  let below = inner.bottom + labelGap
  for (const label of wanted.toReversed()) below = label.y = Math.min(label.y, below - labelGap)
  return wanted.map(
    (label) =>
      html`<text class="label s${label.slot}" x="${inner.right + 10}" y="${round(label.y + 4)}">${label.name}</text>`,
  )
}

/** What happened, as dashed lines; the nearest place of the chart tells what it was. */
function marks({ marks: all = [] }: Chart, x: Scale): Markup[] {
  return all.map(
    ({ atSeconds }) =>
      html`<line class="mark" x1="${round(x.at(atSeconds))}" x2="${round(x.at(atSeconds))}" y1="${margin.top}" y2="${inner.bottom}"/>`,
  )
}

/** A strip over each place of the x axis, whose title tells all values there. */
function strips(chart: Chart, lines: readonly Line[], x: Scale): Markup[] {
  const { x: axis, y: axisY } = chart
  const at = placesOf(lines)
  const happened = new Map<number, string[]>()
  for (const { atSeconds, name } of chart.marks ?? []) {
    const place = at.find((one) => one >= atSeconds) ?? at.at(-1)
    if (place !== undefined) happened.set(place, [...(happened.get(place) ?? []), name])
  }
  return at.map((place, index) => {
    const middle = x.at(place)
    const left = index === 0 ? margin.left : (x.at(at[index - 1]!) + middle) / 2
    const right = index === at.length - 1 ? inner.right : (x.at(at[index + 1]!) + middle) / 2
    const told = lines.flatMap((line) => {
      const value = valueAt(line, place)
      return value === undefined ? [] : [`${line.name} ${withUnit(value, axisY)}`]
    })
    told.push(...(happened.get(place) ?? []))
    const height = inner.bottom - margin.top
    return html`<rect class="place" x="${round(left)}" y="${margin.top}" width="${round(right - left)}" height="${height}"><title>${axis.name} ${withUnit(place, axis)}: ${told.join(', ')}</title></rect>`
  })
}

function placesOf(lines: readonly Line[]): number[] {
  const all = new Set(lines.flatMap(({ points }) => points.map(([place]) => place)))
  return [...all].toSorted((a, b) => a - b)
}

function valueAt({ points }: Line, place: number): number | undefined {
  return points.find(([x]) => x === place)?.[1]
}

function xTick(at: number, value: number): Markup {
  return html`<line class="tick" x1="${round(at)}" x2="${round(at)}" y1="${inner.bottom}" y2="${inner.bottom + 5}"/><text class="value middle" x="${round(at)}" y="${inner.bottom + 19}">${figure(value)}</text>
`
}

function yTick(at: number, value: number): Markup {
  return html`<line class="grid" x1="${margin.left}" x2="${inner.right}" y1="${round(at)}" y2="${round(at)}"/><text class="value end" x="${margin.left - 8}" y="${round(at + 4)}">${figure(value)}</text>
`
}

/** From the smallest to the largest value, or from `origin`; in tenfold steps where that helps. */
function scale(
  axis: Axis,
  values: readonly number[],
  [from, to]: [number, number],
  origin: number | undefined,
): Scale {
  const positive = values.filter((value) => value > tiny)
  const [least, most] = [
    positive.reduce((a, b) => Math.min(a, b), Infinity),
    values.reduce((a, b) => Math.max(a, b), 0),
  ]
  if (axis.log && positive.length > 0 && most / least >= logSpanMin) {
    const [low, high] = [lowerStep(least), -lowerStep(-most)]
    const span = Math.log(high / low)
    const at = (value: number) => from + (to - from) * (Math.log(Math.max(value, low) / low) / span)
    return { at, ticks: logTicks(low, high) }
  }
  const start = origin ?? Math.min(...values)
  const ticks = linearTicks(start, most)
  const [low, high] = origin === undefined ? [start, most] : [start, ticks.at(-1)!]
  const span = Math.max(high - low, tiny)
  return { at: (value) => from + (to - from) * ((value - low) / span), ticks }
}

/** The next of 1, 2, 5 × 10ⁿ at or below a positive value; for a negative one at or above its size, negated. */
function lowerStep(value: number): number {
  const size = Math.abs(value)
  const ten = 10 ** Math.floor(Math.log10(size))
  const steps = [1, 2, 5, 10].map((step) => step * ten)
  return value > 0
    ? steps.findLast((step) => step <= size * 1.0001)!
    : -steps.find((step) => step >= size * 0.9999)!
}

function logTicks(low: number, high: number): number[] {
  // All of 1, 2, 5 while there is room for them, else tens alone.
  const factors = high / low > 1000 ? [1] : [1, 2, 5]
  const ticks: number[] = []
  for (let ten = 10 ** Math.floor(Math.log10(low)); ten <= high * 1.0001; ten *= 10) {
    for (const factor of factors) {
      const tick = factor * ten
      if (tick >= low * 0.9999 && tick <= high * 1.0001) ticks.push(tick)
    }
  }
  return ticks
}

/** About five round steps that reach past `most`, where the axis begins at zero. */
function linearTicks(start: number, most: number): number[] {
  const step = -lowerStep(-(most - start > tiny ? (most - start) / 5 : 1))
  const ticks: number[] = []
  for (let n = Math.ceil(start / step); ; n++) {
    ticks.push(Number((n * step).toPrecision(12)))
    if (n * step >= most * 0.9999) return start === 0 ? ticks : ticks.filter((tick) => tick <= most)
  }
}

function nameOf({ name, unit }: Axis): string {
  return unit ? `${name} (${unit})` : name
}

function withUnit(value: number, { unit }: Axis): string {
  return unit ? `${figure(value)} ${unit}` : figure(value)
}

function round(value: number): number {
  return Math.round(value * 10) / 10
}
