// Text into HTML and SVG: everything that was measured, named or typed passes through here.

/** A piece of markup; made by `html` alone, so that no text can slip in unescaped. */
export class Markup {
  readonly text: string
  constructor(text: string) {
    this.text = text
  }
}

type Part = string | number | Markup | readonly Part[] | undefined

/** A template whose values are escaped unless they are markup; lists are joined, undefined is nothing. */
export function html(parts: TemplateStringsArray, ...values: Part[]): Markup {
  return new Markup(String.raw({ raw: parts }, ...values.map(written)))
}

function written(part: Part): string {
  if (part === undefined) return ''
  if (part instanceof Markup) return part.text
  if (typeof part === 'object') return part.map(written).join('')
  return String(part).replace(/[&<>"']/g, (char) => `&#${char.charCodeAt(0)};`)
}

/** Three significant digits, whole above a thousand: more would be noise. */
export function figure(value: number | null): string {
  if (value === null) return '–'
  return Math.abs(value) >= 1000
    ? Math.round(value).toLocaleString('en-US')
    : String(Number(value.toPrecision(3)))
}
