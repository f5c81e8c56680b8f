// Every bound of the agent, unit in the name, reason beside it. No behaviour.

const KiB = 1024
const MiB = 1024 * KiB

// ---- frames and results ------------------------------------------------------------------------

/** The contract: stdout and stderr are each cut at 1 MiB as JSON-encoded, so escapes count. */
export const outputBytesMax = MiB
/** The contract: a result's error text, also JSON-encoded. */
export const errorBytesMax = 256 * KiB
/** Structured data of a result: with both outputs and the error it stays well under one frame. */
export const dataBytesMax = MiB
/** The contract: the hub closes a socket that sends more (1009). */
export const frameBytesMax = 4 * MiB
/** The contract: a whole inventory frame; software is trimmed to fit. */
export const inventoryBytesMax = 256 * KiB
/** Sorted by memory, what lies beyond is noise on any real device and keeps data under its bound. */
export const processesMax = 3000

// ---- live output -------------------------------------------------------------------------------

/** Two streams share the contract's 5 frames/s per command: one flush of both each 400 ms. */
export const progressIntervalMs = 400
/** What one flush carries per stream; more arrives with the result. */
export const progressCharsMax = 32 * KiB
/** Past this backlog in the socket live output is dropped: the hub is slower than the command. */
export const progressBacklogBytesMax = MiB

// ---- commands ----------------------------------------------------------------------------------

/** The hub allows 100 open commands per device; more than ten times that is a broken hub. */
export const inboxCommandsMax = 1000
/** Results not yet acknowledged; past it a result keeps its end and loses its output. */
export const outboxBytesMax = 16 * MiB
/** The contract; the hub's longest expiry is 30 days, so no id can come back later than this. */
export const executedIdMsMax = 31 * 24 * 3600 * 1000
/** About 20 MiB of memory and journal; one command per half minute for 31 days fits. */
export const executedIdsMax = 100_000
/** The error text of an end that is kept only to answer a late duplicate. */
export const endErrorCharsMax = 200
/** Commands that change nothing run side by side; a few suffice, and a flood must not fork-bomb. */
export const concurrentRunsMax = 4
/** The contract: what the hub has not acknowledged is sent again. */
export const resendIntervalMs = 10_000
/** Spreads the resends of a fleet that was delivered to at the same moment. */
export const resendJitter = 0.2
/** Past this backlog a resend waits for its next turn, or a slow link would never drain. */
export const resendBacklogBytesMax = MiB
/** The contract: how long an action that ends the agent waits for the hub's ack. */
export const ackWaitMs = 5000
/** The longest delay of a reboot or shutdown: one day, beyond it is a schedule, not a delay. */
export const powerDelaySecondsMax = 86_400
/** The hub's own maximum is an hour; a timer in Node overflows after 24 days. */
export const timeoutSecondsMax = 7 * 86_400

// ---- processes ---------------------------------------------------------------------------------

/** The contract: from SIGTERM to SIGKILL of the process group. */
export const killGraceMs = 5000
/** How often a dying process group is looked at. */
export const killPollMs = 50
/** After SIGKILL: a process in uninterruptible sleep must not hold its result for ever. */
export const killGiveUpMs = 2000
/** A background child may hold the pipes open after its shell ended; its output is not waited for. */
export const pipeDrainMs = 1000
/** From SIGTERM to the agent's own end: longer than a command's grace, shorter than a manager's. */
export const stopMsMax = 9000
/** What a supervisor adds to that before it kills a child that does not end. */
export const superviseKillMs = 3000

// ---- journal and logs --------------------------------------------------------------------------

/** Below this the journal is not worth rewriting. */
export const journalBytesMin = 4 * MiB
/** Rewritten once it is this many times its size after the last rewriting: amortised, bounded. */
export const journalGrowthMax = 2
/** A full disk is asked again after this long, doubling up to the second. */
export const journalRetryMs = 1000
export const journalRetryMsMax = 30_000
/** One log file; with the one before it that is days of an agent's own words. */
export const logBytesMax = MiB
/** One line of the log: an error message may quote a whole response. */
export const logLineCharsMax = 8 * KiB
/** collect_logs: default and ceiling, half for the agent's log and half for the system's. */
export const collectBytesDefault = 256 * KiB
export const collectBytesMax = 768 * KiB

// ---- connection --------------------------------------------------------------------------------

/** The contract: full jitter, base 1 s, cap 30 s. */
export const backoffBaseMs = 1000
export const backoffCapMs = 30_000
/** The contract: a suspended organization is asked again after 10 minutes. */
export const suspendedRetryMs = 600_000
/** A connection that lived this long was healthy: back-off starts again at its base. */
export const stableConnectionMs = 60_000
/** From dialling to `welcome`; a hub that accepts and then is silent is as good as down. */
export const welcomeWaitMs = 30_000
/** A plain request to the hub: enrollment, the reason of a refusal. */
export const requestMsMax = 15_000
/** An error body we read to its end. */
export const responseBytesMax = 64 * KiB
/** Retry-After beyond this is a mistake, or a way to silence a fleet. */
export const retryAfterSecondsMax = 3600
/** The contract: heartbeats are spread by ± 10 %. */
export const heartbeatJitter = 0.1
/** A wrong interval from a hub must not become a flood (the hub's limit is 10 frames/s). */
export const heartbeatMsMin = 100
export const heartbeatMsMax = 600_000
/** Every n-th heartbeat asks for an ack: proves the path at a quarter of the hub's cost. */
export const heartbeatsPerAck = 4
/** The contract's own measure of silence, seen from the other end. */
export const silentIntervalsMax = 2.5
/** A reconnect slot beyond this is a mistake: no drain takes longer. */
export const reconnectMsMax = 600_000
/** Enrolling asks this often before it gives up; together about half a minute of back-off. */
export const enrollAttemptsMax = 4

// ---- looking at the device ---------------------------------------------------------------------

/** A helper program (ps, sw_vers, PowerShell) that hangs must not hold the agent. */
export const toolMsMax = 20_000
/** What such a program may print before it is stopped. */
export const toolBytesMax = 16 * MiB
/** Inventory is compared with what was last sent this often. */
export const inventoryIntervalMs = 3_600_000

// ---- terminals ---------------------------------------------------------------------------------

/** The contract: sessions per device; the hub refuses the next one, this holds where a hub does not. */
export const terminalsMax = 3
/** The contract: how long a shell waits for its hub to come back. */
export const terminalAbsenceMs = 120_000
/** Output that arrives within this time after a frame goes out together: 250 frames/s at most. */
export const terminalGatherMs = 4
/** A terminal that takes no input is asked again after this. */
export const terminalWriteRetryMs = 10
/** Where the system has no way to make a program wait, output past this ends the session. */
export const terminalKeptBytesMax = 4 * MiB
/** From the hang-up to SIGKILL of a shell that ignores it. */
export const terminalKillGraceMs = 2000
/** A background job may hold the terminal open after its shell ended; its output is not waited for. */
export const terminalDrainMs = 500

// ---- upgrades ----------------------------------------------------------------------------------

/** The contract: without a connection within 5 minutes the old version comes back. */
export const trialMsMax = 300_000
/** Three heartbeats, their acks and a start: less is no trial. */
export const trialMsMin = 5000
/** The contract: a trial beats every 5 s, which is this part of its time. */
export const trialBeatsMax = 60
/** A start on a slow disk takes seconds; nothing alive is silent for a fifth of a trial. */
export const trialQuietShare = 0.2
/** The contract: after so many acknowledged heartbeats a trial commits. */
export const trialAcksMin = 3
/** The end of what a failed trial printed: a stack, in characters. */
export const trialWordsMax = 2000
/** What the hub may send during a trial waits for its end: it has 100 open commands per device at most. */
export const trialFramesMax = 200
/** Fifty versions for six platforms; a hub offers a handful. */
export const offerBytesMax = MiB
/** A download that brings no byte for so long is begun anew where it ended. */
export const downloadStallMs = 30_000
/** Tries that bring nothing, one after the other: several minutes of back-off. */
export const downloadTriesMax = 10
/** What an upgrade leaves free on the disk of its program. */
export const downloadSpareBytes = 32 * MiB
/** `version` answers in milliseconds, a cold disk needs seconds. */
export const smokeMsMax = 20_000
/** A file that was just written may be held open by a process that is being started. */
export const smokeTriesMax = 5

/** How often a running command's deadline is held against the time since boot: timers sleep with the machine. */
export const deadlineLookMs = 1_000
