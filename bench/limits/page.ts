// The least that a page of devices can cost: one prepared statement that finds and writes the rows as the API shows
// them, joined to a body by uWebSockets.js. Nobody is checked, nothing but this one list is there, and there is no cursor.
import pg from 'pg'
import { idFloor } from '../../src/ids.ts'
import { limits } from '../../src/limits.ts'
import { deviceColumns } from '../../src/resources/device_row.ts'
import { firstUpgradeSql } from '../../src/upgrades.ts'
import { uWS } from '../../src/uws.ts'
import { serve } from './serve.ts'

const pool = new pg.Pool({
  connectionString: process.env['DATABASE_URL'],
  max: limits.poolOperators,
  options: '-c plan_cache_mode=force_generic_plan -c jit=off',
})

const text = `
with page as materialized (
  select d.id from devices d join device_presence p on p.device_id = d.id
  where d.org_id = $1 and p.org_id = $1 and p.status = $2 and d.os = $3
  order by d.id desc limit $4
), open as materialized (
  select c.device_id, count(*) as commands, ${firstUpgradeSql} as upgrade from commands c
  where c.device_id = any(array(select id from page)) and c.completed_at is null and c.id >= $5
  group by 1
)
select (select row_to_json(r)::text from (select ${deviceColumns}) r) as item
from page join devices d using (id)
join device_presence p on p.device_id = d.id
left join open o on o.device_id = d.id
order by d.id desc`

const app = uWS.App().get('/api/v1/devices', (res, req) => {
  let gone = false
  res.onAborted(() => {
    gone = true
  })
  const [orgId, status, os] = ['orgId', 'status', 'os'].map((name) => req.getQuery(name))
  const limit = Number(req.getQuery('limit'))
  const oldest = idFloor(Date.now() - limits.openCommandDaysMax * 86_400_000)
  pool
    .query<{ item: string }>({
      name: 'page',
      text,
      values: [orgId, status, os, limit + 1, oldest],
    })
    .then(({ rows }) => {
      if (gone) return
      const shown = rows.slice(0, limit).map(({ item }) => item)
      const body = `{"data":[${shown.join(',')}],"pagination":{"hasMore":${rows.length > limit},"cursor":null}}`
      res.cork(() => {
        res.writeStatus('200 OK').writeHeader('Content-Type', 'application/json').end(body)
      })
    })
    .catch((error: unknown) => {
      process.stderr.write(`${String(error)}\n`)
      process.exit(1)
    })
})

serve(app)
