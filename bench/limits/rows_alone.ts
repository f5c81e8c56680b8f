// PostgreSQL with the hub's rows and nobody between: as many commands as it commits in batches of a given size, one
// after the other on one connection, as the hub's own writer does.
import { randomUUID } from 'node:crypto'
import pg from 'pg'
import { newId } from '../../src/ids.ts'
import { storeCommands, type NewCommand } from './command_rows.ts'

/** Stores commands for the devices in turn; returns how many, and how long it took. */
export async function storeAlone(
  url: string,
  deviceIds: readonly string[],
  { batch, seconds }: { batch: number; seconds: number },
): Promise<{ count: number; seconds: number }> {
  const client = new pg.Client({ connectionString: url })
  client.on('error', () => undefined)
  await client.connect()
  try {
    const [orgId, siteId] = [randomUUID(), randomUUID()]
    const newCommand = (n: number): NewCommand => ({
      id: newId(),
      deviceId: deviceIds[n % deviceIds.length]!,
      orgId,
      siteId,
      action: 'run_command',
      payload: '{"command": "uptime"}',
    })
    let count = 0
    const startedMs = performance.now()
    const endMs = startedMs + seconds * 1000
    while (performance.now() < endMs) {
      const from = count
      await storeCommands(
        client,
        Array.from({ length: batch }, (_, index) => newCommand(from + index)),
      )
      count += batch
    }
    return { count, seconds: (performance.now() - startedMs) / 1000 }
  } finally {
    await client.end()
  }
}
