// Everything that can stand beside the hub: what it is, what it leaves out, and by which name a run asks for it.
import type { Side } from './rows.ts'

/** What `--beside` takes: the cheapest programs, the plain rival, and two brokers. */
export const besideNames = ['limit', 'baseline', 'nats', 'mosquitto'] as const
export type BesideName = (typeof besideNames)[number]

interface About {
  name?: BesideName
  /** One line; what it does not do is part of it, or its figures would look like a rival's. */
  about: string
}

const sides: Record<Side, About> = {
  hub: { about: 'Muster as it is installed' },
  bare: {
    name: 'limit',
    about: 'uWebSockets.js alone: upgrades anybody, counts frames, reads none',
  },
  bare_echo: {
    name: 'limit',
    about: 'uWebSockets.js alone: sends every frame back, reads none',
  },
  passing: {
    name: 'limit',
    about:
      'uWebSockets.js alone: a command goes through and its result back; unchecked, not stored',
  },
  least: {
    name: 'limit',
    about: "uWebSockets.js and the hub's rows in PostgreSQL, in batches; nothing checked",
  },
  online: {
    name: 'limit',
    about:
      "uWebSockets.js, tokens looked up and the hub's rows of who is online, in batches; nothing else",
  },
  rows: { name: 'limit', about: "PostgreSQL alone: the hub's rows in its batches, no network" },
  page: {
    name: 'limit',
    about: "uWebSockets.js and one prepared statement on the hub's database; nobody checked",
  },
  echo: { name: 'limit', about: 'node:net alone: sends bytes back' },
  relay: { name: 'limit', about: 'uWebSockets.js alone: what one socket sends goes to the other' },
  baseline: {
    name: 'baseline',
    about:
      'Fastify, ws and pg in one file: token checked, one row per command; no audit, no events',
  },
  nats: {
    name: 'nats',
    about: 'NATS: nobody checked, nothing stored, heartbeats passed to one subscriber',
  },
  mosquitto: {
    name: 'mosquitto',
    about: 'Mosquitto, QoS 0: nobody checked, nothing stored, heartbeats passed to one subscriber',
  },
}

export function aboutSide(side: Side): string {
  return sides[side].about
}

/** By which name a run asks for it; none for the hub, which is always there. */
export function besideName(side: Side): BesideName | undefined {
  return sides[side].name
}
