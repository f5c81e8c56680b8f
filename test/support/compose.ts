// docker-compose.yml as an engine would read it.
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { parse } from 'yaml'

export const composeText = readFileSync(
  join(import.meta.dirname, '..', '..', 'docker-compose.yml'),
  'utf8',
)

export interface Service {
  image: string
  build?: { context: string }
  ports?: string[]
  environment?: Record<string, string>
  labels?: Record<string, string>
  volumes?: string[]
  container_name?: string
  networks: string[] | Record<string, { aliases: string[] }>
  healthcheck: { test: string[] }
  restart: string
  read_only?: boolean
  user?: string
  cap_drop: string[]
  cap_add?: string[]
  security_opt: string[]
  logging: { driver: string; options: Record<string, string> }
  deploy: { replicas?: number; resources: { limits: { cpus: string; memory: string } } }
  command?: string | string[]
  entrypoint?: string[]
  profiles?: string[]
  stop_grace_period?: string
}

export interface Compose {
  services: Record<string, Service>
  networks: Record<string, { internal?: boolean; ipam?: { config: { subnet: string }[] } } | null>
  volumes: Record<string, unknown>
}

/** As the compose specification interpolates: `${A}`, `${A:-default}`, `${A:?message}`, `$$`, nested. */
function interpolate(source: string, env: Record<string, string | undefined>): string {
  const inner = /\$\$|\$\{(\w+)(?:(:[-?])([^{}]*))?\}/g
  const step = (part: string) =>
    part.replace(inner, (whole, name?: string, kind?: string, rest = '') => {
      if (name === undefined) return whole
      const value = env[name]
      if (value) return value
      if (kind === ':-') return rest
      if (kind === ':?') throw new Error(rest)
      return ''
    })
  let before = ''
  for (let after = source; before !== after; after = step(before)) before = after
  return before.replaceAll('$$', '$')
}

/** The services with these variables. Throws the file's own message where one is missing that it needs. */
export function readCompose(env: Record<string, string | undefined>): Compose {
  return parse(interpolate(composeText, env), { merge: true }) as Compose
}
