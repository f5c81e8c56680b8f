// Bounded text: how long it is as JSON, where to cut it, and output that arrives in chunks. Pure.

/** The bytes a text takes inside a JSON string, without the quotes: escapes count in full. */
export function encodedBytes(text: string): number {
  return Buffer.byteLength(JSON.stringify(text)) - 2
}

/** The longest beginning of a text that takes at most so many bytes as JSON; whole characters only. */
export function cutEncoded(text: string, bytesMax: number): string {
  if (text.length * 6 <= bytesMax || encodedBytes(text) <= bytesMax) return text
  let bytes = 0
  let at = 0
  for (const character of text) {
    bytes += characterBytes(character.codePointAt(0) ?? 0)
    if (bytes > bytesMax) break
    at += character.length
  }
  return text.slice(0, at)
}

// The same count as encodedBytes, without making a string per character: output may be megabytes.
function characterBytes(code: number): number {
  if (code < 0x20) return shortEscapes.has(code) ? 2 : 6
  if (code === 0x22 || code === 0x5c) return 2
  if (code < 0x80) return 1
  if (code < 0x800) return 2
  if (code >= 0xd800 && code <= 0xdfff) return 6 // half a pair is written as \udXXX
  return code < 0x10000 ? 3 : 4
}

/** \b \t \n \f \r */
const shortEscapes = new Set([0x08, 0x09, 0x0a, 0x0c, 0x0d])

/** Text collected from chunks of bytes, up to a bound; what comes after the cut is not kept. */
export class BoundedText {
  readonly #decoder = new TextDecoder('utf-8', { ignoreBOM: true })
  readonly #parts: string[] = []
  #bytesLeft: number
  #truncated = false

  constructor(bytesMax: number) {
    this.#bytesLeft = bytesMax
  }

  /** Takes a chunk; answers the part of it that was kept. Split characters wait for their rest. */
  push(chunk: Uint8Array): string {
    if (this.#truncated) return ''
    return this.#keep(this.#decoder.decode(chunk, { stream: true }))
  }

  /** Ends the text; answers a last piece when the bytes ended inside a character. */
  end(): string {
    return this.#truncated ? '' : this.#keep(this.#decoder.decode())
  }

  get text(): string {
    return this.#parts.join('')
  }

  get truncated(): boolean {
    return this.#truncated
  }

  #keep(text: string): string {
    const kept = cutEncoded(text, this.#bytesLeft)
    this.#truncated = kept.length < text.length
    this.#bytesLeft -= encodedBytes(kept)
    if (kept !== '') this.#parts.push(kept)
    return kept
  }
}
