// Time as the actors of a shard see it: the front's, less the time in which the front itself stood still. What agents
// sent meanwhile is still in the sockets, so no deadline may run.

export class ShardClock {
  /** Ms since 1970, when the front posted the mail that is dealt with. */
  nowMs = Date.now()
  /** For how long the front stood still, in all. */
  stalledMs = 0
  private tickMs = 0

  /** What deadlines of actors are measured by, in ms. */
  get actorMs(): number {
    return this.nowMs - this.stalledMs
  }

  /** Ticks come once a second: one that is late by more than jitter, or `deaf`, since heartbeats were thrown away. */
  tick(deaf: boolean): void {
    const sinceMs = this.tickMs === 0 ? 0 : this.nowMs - this.tickMs
    if (deaf) this.stalledMs += sinceMs
    else if (sinceMs > 1500) this.stalledMs += sinceMs - 1000
    this.tickMs = this.nowMs
  }
}
