// Collects the garbage of a thread, down to the pages that V8 keeps for later. For moments that are known: what starting
// left behind would be held for as long as the hub is idle, since V8 collects when something is allocated.

/** Takes some tens of ms, in which the thread does nothing else. Does nothing where V8 was started without `--expose-gc`, which `start.js` sees to. */
export function collectGarbage(): void {
  globalThis.gc?.({ type: 'major', execution: 'sync', flavor: 'last-resort' })
}
