// What hubs that share a terminal session say to each other over the bus. Its home is the hub that it lives on.
import type { AuditSource } from './audit.ts'
import type { Actor } from './auth.ts'
import type { ErrorMessage } from './errors.ts'
import type { TerminalSize } from './terminal_frames.ts'
import type { TerminalDevice } from './terminals.ts'

/** Who asks, for the home to look up by itself. */
export type Asker = Pick<Actor, 'userId' | 'sessionId'>

/** What `open` and `ticket` are answered with. */
export interface IssuedTicket {
  id: string
  ticket: string
  expiresMs: number
}

export type Question =
  | { op: 'open'; asker: Asker; source: AuditSource; device: TerminalDevice; size: TerminalSize }
  | { op: 'ticket'; asker: Asker; id: string }
  | { op: 'redeem'; id: string; ticket: string }
  /** Which of these sessions live there; an agent that is here has their shells. */
  | { op: 'keeps'; ids: string[] }

export interface AgentHere {
  deviceId: string
  ids: string[]
  /** Frames of it were lost: it is to be asked to go on. */
  again: boolean
}

export type RelayMessage =
  | { op: 'ask'; ask: number; question: Question }
  | { op: 'answer'; ask: number; value?: unknown; error?: ErrorMessage }
  /** The socket of a line is there, or gone. */
  | { op: 'up'; line: string; source: AuditSource }
  | { op: 'down'; line: string }
  /** The home closes the socket of a line. */
  | { op: 'close'; line: string; code: number; reason: string }
  /** The sender lives, and has these sockets and agents of the receiver's sessions. */
  | { op: 'beat'; lines: string[]; agents: AgentHere[] }
  | { op: 'agent_down'; deviceId: string; code: number }

/** What a frame on the bus is: its way, and 16 bytes that name the line or the device. */
export const ways = { toHome: 0, toOperator: 1, toAgent: 2, fromAgent: 3 } as const
export type Way = (typeof ways)[keyof typeof ways]
