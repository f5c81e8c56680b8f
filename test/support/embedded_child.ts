// A process that owns an embedded PostgreSQL, says so in one line of JSON, and waits to be killed.
import { startEmbedded } from '../../src/embedded.ts'

const [dataDir = '', then = 'wait'] = process.argv.slice(2)
const { url, pid } = await startEmbedded({ dataDir, log: () => {} })
process.stdout.write(`${JSON.stringify({ url, pid })}\n`)
if (then === 'exit') process.exit(0)
