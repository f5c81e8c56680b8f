// The limit of P9: uWebSockets.js with two sockets, each message of one sent to the other. No ticket is checked,
// no frame read, nothing counted or recorded; no relay on this library can be quicker than this.
import type { WebSocket } from 'uWebSockets.js'
import { uWS } from '../../src/uws.ts'
import { serve } from './serve.ts'

type End = 'agent' | 'operator'
const open: Partial<Record<End, WebSocket<{ end: End }>>> = {}

const app = uWS.App()
for (const [end, other, path] of [
  ['agent', 'operator', '/api/v1/agents/:id/ws'],
  ['operator', 'agent', '/api/v1/terminals/:id/ws'],
] as const) {
  app.ws<{ end: End }>(path, {
    idleTimeout: 120,
    maxPayloadLength: 4 * 1024 * 1024,
    upgrade(res, req, context) {
      res.upgrade(
        { end },
        req.getHeader('sec-websocket-key'),
        req.getHeader('sec-websocket-protocol').split(',')[0] ?? '',
        req.getHeader('sec-websocket-extensions'),
        context,
      )
    },
    open(ws) {
      open[end] = ws
    },
    message(_ws, message, isBinary) {
      if (isBinary) open[other]?.send(message, true)
    },
    close() {
      delete open[end]
    },
  })
}
serve(app)
