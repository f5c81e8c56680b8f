// Two who write one command at once: an end that had to wait for another writer of its row is stored all the
// same, on plans that are made once as on plans made for the values.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { openDatabase, plainArray, textArray, type Database } from '../src/db.ts'
import { newId } from '../src/ids.ts'
import { commandsSql, plainCommandsSql, straySql } from '../workers/statements.ts'
import { createDatabase, type TestDatabase } from './support/postgres.ts'
import { addCommand, addDevice, addPlace, commandRow } from './support/rows.ts'
import { until } from './support/until.ts'

let database: TestDatabase
/** May see what other connections wait for. */
let owner: Database
let deviceId: string
let orgId: string

before(async () => {
  database = await createDatabase()
  owner = openDatabase({ url: database.url, name: 'owner', connections: 1, role: 'owner' })
  const place = await addPlace(owner)
  orgId = place.orgId
  deviceId = await addDevice(owner, place, { status: 'online' })
})
after(async () => {
  await owner.close()
  await database.drop()
})

/** Runs a statement while another transaction has changed the row of `id`, which commits then. */
async function whileChanged(db: Database, id: string, sql: string, values: unknown[]) {
  const { waiting } = await db.transaction(async (tx) => {
    await tx.query('update commands set cancel_requested_at = now() where id = $1', [id])
    const running = db.query(sql, values)
    await until('the statement to wait', async () => {
      const [row] = await owner.query<{ waits: boolean }>(
        `select exists (select from pg_stat_activity where wait_event_type = 'Lock'
           and application_name = 'muster race' and datname = current_database()) as waits`,
      )
      return row?.waits
    })
    // Not awaited here: it ends after this transaction.
    return { waiting: running }
  })
  return waiting
}

for (const plans of [{ planOnce: true }, { planEach: true }, {}]) {
  const name = Object.keys(plans)[0] ?? 'plans as PostgreSQL likes'

  for (const [what, sql] of Object.entries({ commandsSql, plainCommandsSql })) {
    test(`an end is stored (${what}, ${name})`, async () => {
      const db = openDatabase({ url: database.url, name: 'race', connections: 2, ...plans })
      const ids = [await addCommand(db, deviceId, { createdAgo: 1 })]
      ids.push(await addCommand(db, deviceId, { createdAgo: 0 }))
      const nowMs = Date.now()
      const each = (value: number | string | boolean) => plainArray(ids.map(() => value))
      const rows = await whileChanged(db, ids[1] ?? '', sql, [
        plainArray(ids),
        each(deviceId),
        each(1),
        each('completed'),
        textArray(ids.map(() => '{}')),
        ...[1, nowMs, nowMs, nowMs, nowMs].map(each),
        plainArray(ids.map(() => newId())),
        each(false),
      ])
      assert.deepEqual(
        rows.map(({ applied }) => applied),
        [true, true],
      )
      for (const id of ids) assert.equal((await commandRow(db, id))?.ended, true)
      await db.close()
    })
  }

  test(`a late result is kept (${name})`, async () => {
    const db = openDatabase({ url: database.url, name: 'race', connections: 2, ...plans })
    const id = await addCommand(db, deviceId)
    await db.query(`update commands set status = 'timeout', completed_at = now() where id = $1`, [
      id,
    ])
    const values = [[id], [deviceId], [orgId], ['{"late":true}'], [newId()]]
    await whileChanged(db, id, straySql, values)
    const [row] = await db.query<{ late: unknown }>(
      'select late_result as late from commands where id = $1',
      [id],
    )
    assert.deepEqual(row?.late, { late: true })
    await db.close()
  })
}
