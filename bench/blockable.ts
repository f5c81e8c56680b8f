// Loaded into every thread of a hub with a door (`controlled_hub.ts`): lets the bench have one shard compute for a
// while, as a fault in it would. A broadcast is heard by all and meant for one.
import { BroadcastChannel, isMainThread, workerData } from 'node:worker_threads'

export const channelName = 'bench-block'

export interface Block {
  shard: number
  ms: number
}

if (!isMainThread) {
  const channel = new BroadcastChannel(channelName)
  channel.unref()
  channel.addEventListener('message', (event) => {
    const { data } = event as unknown as { data: Block }
    if ((workerData as { index?: number } | null)?.index !== data.shard) return
    const endMs = performance.now() + data.ms
    while (performance.now() < endMs);
  })
}
