// What people read when a hub is up: where it is, and what to do next.
import { secretFile, type Config } from './config.ts'

/** How people reach the address it listens on, as a URL has it. */
export function hostOf(config: Config): string {
  if (config.host === '0.0.0.0' || config.host === '::') return 'localhost'
  return config.host.includes(':') ? `[${config.host}]` : config.host
}

interface Addresses {
  /** Where it listens. */
  origin: string
  publicOrigin: string
  database: string
}

export function greeting(config: Config, { origin, publicOrigin, database }: Addresses): string[] {
  const made = config.generated.map(
    (name) => `${name} is kept in ${secretFile(config.dataDir, name)}`,
  )
  const secret = config.generated.includes('AGENT_ENROLLMENT_SECRET')
    ? `"$(cat '${secretFile(config.dataDir, 'AGENT_ENROLLMENT_SECRET')}')"`
    : '"$AGENT_ENROLLMENT_SECRET"'
  return [
    `Muster ${config.version} runs on ${origin} with ${database}`,
    `API ${publicOrigin}/api/v1 · reference ${publicOrigin}/docs · health ${publicOrigin}/health/ready`,
    'Enroll this machine:',
    `  npm run -s agent -- enroll --url ${publicOrigin} --secret ${secret}`,
    '  npm run -s agent -- run',
    ...made,
  ]
}
