// What an agent whose work takes no time says of a command: delivered, started, result. The same bytes whoever
// carries them.
import type { AgentFrame } from '../src/protocol.ts'

export function answersTo(id: string): AgentFrame[] {
  return [
    { type: 'delivered', id },
    { type: 'started', id },
    {
      type: 'result',
      id,
      status: 'completed',
      exitCode: 0,
      stdout: ' 10:42:01 up 12 days,  3:04,  1 user,  load average: 0.10, 0.08, 0.05\n',
      stderr: '',
      truncated: false,
      error: null,
      durationMs: 3,
    },
  ]
}
