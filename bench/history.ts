// What a fleet has behind it: ended commands, audit rows and events of the last 20 days, made by rows.
import { idSql, timeSql } from '../test/support/large_database.ts'
import type { BenchDatabase } from './database.ts'

/** Empties what `fillHistory` fills. */
export async function dropHistory(database: BenchDatabase): Promise<void> {
  await database.read('truncate commands, audit, events')
}

/**
 * Gives the oldest `devices` of the fleet `each` rows in the tables of commands, audit and events. Rows carry
 * the transaction number of long ago: nothing that follows the tables in the order of commits takes them for news.
 */
export async function fillHistory(
  database: BenchDatabase,
  devices: number,
  each: number,
): Promise<void> {
  const rows = devices * each
  const from = `from generate_series(0, ${rows - 1}) as n, (
    select array_agg(id) as ids, (array_agg(org_id))[1] as org from (
      select id, org_id from devices order by id limit ${devices}) d) as d`
  const device = `ids[1 + n % ${devices}]`
  await database.read(`select make_partitions((now() - interval '1 month')::date, 1)`)
  await database.read(
    `insert into commands (id, device_id, org_id, action, payload, status, timeout_seconds, created_at, expires_at,
       completed_at, result)
     select ${idSql('n', rows)}, ${device}, org, 'ping', '{}', 'completed', 300, ${timeSql('n', rows)}, now(), now(),
       '{"exitCode":0}' ${from}`,
  )
  await database.read(
    `insert into audit (id, org_id, at, actor_type, actor_id, action, resource_type, resource_id, device_id, result,
       details, xid)
     select ${idSql('n', rows)}, org, ${timeSql('n', rows)}, 'user', md5((n % 100)::text)::uuid, 'command.create',
       'command', gen_random_uuid(), ${device}, 'success', '{}', '3' ${from}`,
  )
  await database.read(
    `insert into events (id, org_id, type, at, data, xid)
     select ${idSql('n', rows)}, org, 'command.completed', ${timeSql('n', rows)}, '{}', '3' ${from}`,
  )
  // Else both would run while something is measured.
  await database.read('vacuum (analyze)')
  await database.read('checkpoint')
}
