// A worker thread that touches uWebSockets.js and reports what it is told.
import { parentPort } from 'node:worker_threads'
import { uWS } from '../../src/uws.ts'

try {
  uWS.App()
} catch (error) {
  parentPort?.postMessage(error instanceof Error ? error.message : error)
}
