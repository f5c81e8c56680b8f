// The limit of P1, P2 and P3: uWebSockets.js with one upgrade handler and a counter. No token is
// checked, no frame parsed, nothing kept; no hub on this library can be cheaper than this. With ECHO=1 it sends
// every frame back.
import { uWS } from '../../src/uws.ts'
import { serve } from './serve.ts'

let frames = 0
/** What an answer to each frame would cost. */
const echoes = process.env['ECHO'] === '1'

const app = uWS
  .App()
  .ws('/api/v1/agents/:deviceId/ws', {
    idleTimeout: 120,
    maxPayloadLength: 4 * 1024 * 1024,
    upgrade: (res, req, context) => {
      res.upgrade(
        { id: req.getParameter(0) },
        req.getHeader('sec-websocket-key'),
        req.getHeader('sec-websocket-protocol'),
        req.getHeader('sec-websocket-extensions'),
        context,
      )
    },
    message: echoes
      ? (ws, message, isBinary) => {
          frames++
          ws.send(message, isBinary)
        }
      : () => {
          frames++
        },
  })
  // Under the hub's name, so that the bench reads every program alike.
  .get('/metrics', (res) => {
    res.end(`muster_heartbeats_total ${frames}\n`)
  })

process.on('SIGUSR2', () => globalThis.gc?.())
serve(app)
