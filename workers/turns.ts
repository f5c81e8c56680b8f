// Work that one hub does at a time, whichever comes first: an advisory lock until the transaction ends. It
// costs no write, unlike a locked row, so that looking once a second leaves an idle database idle.
import type { Queryable } from '../src/db.ts'

/** False while another hub has the turn. */
export async function takeTurn(tx: Queryable, work: string): Promise<boolean> {
  const [turn] = await tx.query<{ mine: boolean }>(
    'select pg_try_advisory_xact_lock(hashtext($1)) as mine',
    [`muster.${work}`],
  )
  return turn?.mine === true
}
