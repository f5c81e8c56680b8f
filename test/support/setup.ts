// What `node --test` runs once around all test files: the PostgreSQL they share. Test processes learn of
// it by the environment, and it ends after them, also after Ctrl-C.
import { startServer, type SharedServer, type TestServer } from './postgres.ts'

let server: TestServer | undefined

export async function globalSetup(): Promise<void> {
  server = await startServer()
  const { url, prefix } = server
  process.env['MUSTER_TEST_SERVER'] = JSON.stringify({ url, prefix } satisfies SharedServer)
}

export async function globalTeardown(): Promise<void> {
  await server?.stop()
}
