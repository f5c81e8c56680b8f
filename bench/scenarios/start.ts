// P13: `npm start` to ready on a data folder that exists, embedded PostgreSQL included, and what the
// idle hub weighs by itself.
import { basename, join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { startWords, type Lab } from '../lab.ts'
import { commandLine, descendants, rssBytes } from '../proc.ts'
import { startProgram, type Program } from '../programs.ts'
import type { Scenario } from '../suite.ts'

export const start: Scenario = {
  name: 'start',
  about: 'npm start to ready on the second start; RSS of the idle hub without PostgreSQL',
  rivals: [],
  agents: 1,
  seconds: 5,
  warmUpSeconds: 0,
  ownHub: 'starts its own hub',
  rows: [
    {
      id: 'P13a',
      name: 'npm start to ready, second start',
      metric: 'readySeconds',
      unit: 's',
      goal: { valueMost: 2 },
    },
    {
      id: 'P13b',
      name: 'RSS of the idle hub, without PostgreSQL',
      metric: 'megabytes',
      unit: 'MB',
      goal: { valueMost: 150 },
    },
  ],
  async enter(_side, lab) {
    // The first start makes the database; it is no part of the goal.
    await (await lab.starting(() => npmStart(lab))).stop()
    return async (seconds) => {
      const startedMs = performance.now()
      const program = await lab.starting(() => npmStart(lab))
      const readySeconds = (performance.now() - startedMs) / 1000
      await sleep(seconds * 1000)
      const pid = findHub(program)
      if (pid === undefined) throw new Error('npm start runs no hub')
      const megabytes = rssBytes(pid) / 2 ** 20
      await program.stop()
      return { readySeconds, megabytes }
    }
  },
}

async function npmStart(lab: Lab): Promise<Program> {
  const program = await startProgram({
    command: ['npm', 'start'],
    env: { DATA_DIR: join(lab.folder, 'start-data'), LOG_LEVEL: 'warn' },
    logFile: join(lab.folder, 'start.log'),
  })
  // npm does not promise to pass a signal on, so the hub gets its own; npm ends when the hub does.
  const stop = async () => {
    const pid = findHub(program)
    if (pid !== undefined) process.kill(pid, 'SIGTERM')
    for (let i = 0; i < 100 && findHub(program) !== undefined; i++) await sleep(100)
    await program.stop()
  }
  lab.defer(stop)
  return { ...program, stop }
}

/** npm runs a shell that runs the hub; only the hub is weighed. */
function findHub({ pid }: Program): number | undefined {
  const [node = '', ...rest] = startWords()
  return descendants(pid).find((member) => {
    const [program = '', ...args] = commandLine(member).split(' ')
    return basename(program) === node && args.join(' ') === rest.join(' ')
  })
}
