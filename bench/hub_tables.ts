// The hub's own tables for a limit program: migrated as the hub migrates them, with devices that nobody enrolled.
import { randomUUID } from 'node:crypto'
import { fileURLToPath } from 'node:url'
import pg from 'pg'
import { migrate } from '../src/migrate.ts'

/** The token that such a device would have, as long as a real one. */
export function madeUpToken(id: string): string {
  return `mst_${id}_______`
}

/** Makes the tables, and `count` devices of one site in them; returns their ids. */
export async function fillHubTables(url: string, count: number): Promise<string[]> {
  await migrate({
    connectionString: url,
    hubVersion: '0.1.0',
    directory: fileURLToPath(new URL('../migrations', import.meta.url)),
  })
  const client = new pg.Client({ connectionString: url })
  client.on('error', () => undefined)
  await client.connect()
  try {
    const [orgId, siteId] = [randomUUID(), randomUUID()]
    await client.query(`insert into organizations (id, name, slug) values ($1, $2, $2)`, [
      orgId,
      `o${orgId.slice(0, 8)}`,
    ])
    await client.query(`insert into sites (id, org_id, name) values ($1, $2, 's')`, [siteId, orgId])
    const { rows } = await client.query<{ id: string }>(
      `insert into devices (id, org_id, site_id, hostname, os, arch, token_hash)
       select id, $1, $2, 'h', 'linux', 'amd64', sha256(('mst_' || id || '_______')::bytea)
       from (select gen_random_uuid() as id from generate_series(1, $3::int)) n
       returning id`,
      [orgId, siteId, count],
    )
    await client.query(
      `insert into device_presence (device_id, org_id) select id, org_id from devices where org_id = $1`,
      [orgId],
    )
    await client.query('vacuum analyze')
    return rows.map(({ id }) => id)
  } finally {
    await client.end()
  }
}
