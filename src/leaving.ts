// How a hub leaves: agents are handed to other hubs while it still serves, then requests end and sockets close.
import { setTimeout as sleep } from 'node:timers/promises'
import type { Front } from './front.ts'
import type { HttpServer } from './http.ts'
import { limits } from './limits.ts'
import type { Context } from './route.ts'

/**
 * Other hubs take over while this one still serves: readiness says so, and only then agents move, for what
 * stands in front would send them here again. Each keeps its socket until the new one is open.
 */
export async function handOver(noticeMs: number, front: Front): Promise<void> {
  const spreadMs = Math.min(
    limits.drainSpreadMsMax,
    (front.connected() / limits.drainAgentsPerSecond) * 1000,
  )
  const startedMs = performance.now()
  await front.moveAll(noticeMs, spreadMs)
  const giveUpMs = startedMs + noticeMs + spreadMs + limits.drainLateMs
  const isOver = () => performance.now() >= startedMs + noticeMs && front.connected() === 0
  while (!isOver() && performance.now() < giveUpMs) await sleep(50)
}

/** Lets requests end, then closes the sockets; what the actors still hold is written by the shards. */
export async function leave(ctx: Context, front: Front, server: HttpServer): Promise<void> {
  ctx.commands.release()
  ctx.streams.close()
  ctx.shards.broadcast({ type: 'leaving' })
  await ctx.terminals.close()
  await ctx.commands.drained()
  front.closeAll()
  const giveUpMs = performance.now() + limits.checkoutMsMax
  while (server.inFlight() > 0 && performance.now() < giveUpMs) {
    await sleep(10)
  }
}
