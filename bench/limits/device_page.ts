// The least that a page of devices can cost a program on uWebSockets.js: one prepared statement that finds and writes
// the rows as the API shows them, joined to a body. Nobody is checked, and there is no cursor.
import type { TemplatedApp } from 'uWebSockets.js'
import pg from 'pg'
import { idFloor } from '../../src/ids.ts'
import { limits } from '../../src/limits.ts'
import { deviceColumns, openSql } from '../../src/resources/device_row.ts'
import { fail, reply } from './serve.ts'

const pageRowsDefault = 50

/** Serves the list on the app: of an organization, a status and a system where those are asked for, else of all. */
export function serveDevicePages(app: TemplatedApp, connectionString: string | undefined): void {
  const pool = new pg.Pool({
    connectionString,
    max: limits.poolCommands,
    idleTimeoutMillis: limits.poolIdleMs,
    // As the hub's: plans are kept, and never those of an empty table.
    options: '-c plan_cache_mode=force_generic_plan -c enable_seqscan=off -c jit=off',
  })
  app.get('/api/v1/devices', (res, req) => {
    let gone = false
    res.onAborted(() => {
      gone = true
    })
    const filters = ['orgId', 'status', 'os'].flatMap((name) => req.getQuery(name) ?? [])
    const limit = Number(req.getQuery('limit') ?? pageRowsDefault)
    const oldest = idFloor(Date.now() - limits.openCommandDaysMax * 86_400_000)
    const filtered = filters.length === 3
    pool
      .query<{ item: string }>({
        name: filtered ? 'filtered' : 'all',
        text: filtered ? filteredSql : allSql,
        values: [limit + 1, oldest, ...(filtered ? filters : [])],
      })
      .then(({ rows }) => {
        const shown = rows.slice(0, limit).map(({ item }) => item)
        const pagination = `{"hasMore":${rows.length > limit},"cursor":null}`
        if (!gone) reply(res, '200 OK', `{"data":[${shown.join(',')}],"pagination":${pagination}}`)
      })
      .catch(fail)
  })
}

// For a limit that is a parameter a tenth of the table is planned: so the walk has a bound of its own.
const allSql = pageSql(
  `select d.id from (select id from devices order by id desc limit ${limits.pageSizeMax + 1}) d`,
)
const filteredSql = pageSql(`select d.id from devices d join device_presence p on p.device_id = d.id
  where d.org_id = $3 and p.org_id = $3 and p.status = $4 and d.os = $5`)

function pageSql(found: string): string {
  return `
with page as materialized (${found} order by d.id desc limit $1), ${openSql('array(select id from page)', '$2')}
select (select row_to_json(r)::text from (select ${deviceColumns}) r) as item
from page join devices d using (id)
join device_presence p on p.device_id = d.id
left join open o on o.device_id = d.id
order by d.id desc`
}
