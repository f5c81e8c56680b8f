// When the inventory goes to the hub: after the first welcome, when it changed, when it is asked for.

import type { InventoryFrame } from '../src/protocol.ts'
import { describe } from './errors.ts'
import { readInventory } from './inventory.ts'
import { inventoryIntervalMs } from './limits.ts'
import type { Log } from './log.ts'

interface Parts {
  send(frame: InventoryFrame): boolean
  log: Log
}

export class InventoryReporter {
  readonly #parts: Parts
  #sent: string | null = null
  #timer: NodeJS.Timeout | null = null

  constructor(parts: Parts) {
    this.#parts = parts
  }

  /** A connection is up; the first one of this process brings the inventory. */
  connected(): void {
    if (this.#sent === null) void this.#sendIfChanged()
    this.#timer ??= setInterval(() => void this.#sendIfChanged(), inventoryIntervalMs)
  }

  /** Sends a fresh inventory, changed or not; false when there is no connection. */
  async send(): Promise<boolean> {
    const frame = await readInventory()
    const sent = this.#parts.send(frame)
    if (sent) this.#sent = JSON.stringify(frame)
    return sent
  }

  stop(): void {
    if (this.#timer) clearInterval(this.#timer)
  }

  async #sendIfChanged(): Promise<void> {
    try {
      const frame = await readInventory()
      const text = JSON.stringify(frame)
      if (text !== this.#sent && this.#parts.send(frame)) this.#sent = text
    } catch (error) {
      this.#parts.log.error('inventory could not be read', { error: describe(error) })
    }
  }
}
