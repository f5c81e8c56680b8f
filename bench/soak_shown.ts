// What the API shows at the end of a soak beside what is so: devices online and sockets held, commands and their rows.
import type { PatientClient } from './patient_client.ts'

/** Ids asked for through the API at the end: what it shows is what the table holds. */
const sampleSize = 200

/** Says what is shown otherwise: devices beside those whose sockets are `held`, commands beside their rows. */
export async function compareShown(
  client: PatientClient,
  ids: readonly string[],
  statuses: ReadonlyMap<string, string>,
  held: ReadonlySet<string>,
): Promise<string[]> {
  const wrong: string[] = []
  const online = new Set<string>()
  for (let cursor: string | null = ''; cursor !== null;) {
    const more: string = cursor === '' ? '' : `&cursor=${encodeURIComponent(cursor)}`
    const path = `/api/v1/devices?status=online&limit=500${more}`
    const { body } = await client.ask({ method: 'GET', path, good: [200] })
    const page = JSON.parse(body) as {
      data: { id: string }[]
      pagination: { cursor: string | null }
    }
    for (const { id } of page.data) online.add(id)
    cursor = page.pagination.cursor
  }
  for (const id of new Set([...online, ...held])) {
    if (!held.has(id)) wrong.push(`device ${id} is shown online, and holds no socket`)
    if (!online.has(id)) wrong.push(`device ${id} holds a socket, and is not shown online`)
  }
  const stride = Math.max(1, Math.floor(ids.length / sampleSize))
  for (let index = 0; index < ids.length; index += stride) {
    const id = ids[index]!
    const path = `/api/v1/commands/${id}`
    const answer = await client.ask({ method: 'GET', path, good: [200, 404] })
    const { status } = JSON.parse(answer.body) as { status?: string }
    if (status !== statuses.get(id)) {
      wrong.push(`command ${id} is shown as ${status}, stored as ${statuses.get(id)}`)
    }
  }
  return wrong
}
