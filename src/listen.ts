// The port a hub listens on, its alone.
import type { TemplatedApp, us_listen_socket } from 'uWebSockets.js'
import type { Config } from './config.ts'
import { StartError } from './database.ts'
import { uWS } from './uws.ts'

// The addon takes options beside a host, its type declarations only without one.
type ListenWithOptions = (
  host: string,
  port: number,
  options: number,
  listening: (socket: us_listen_socket | false) => void,
) => void
const listenExclusive = 1

/** Throws StartError where the port can't be had. */
export function listen(
  app: TemplatedApp,
  config: Config,
): Promise<{ socket: us_listen_socket; port: number }> {
  return new Promise((resolve, reject) => {
    const listenOn = app.listen.bind(app) as unknown as ListenWithOptions
    // Exclusive: by default two hubs would share a port and each see half of the agents.
    listenOn(config.host, config.port, listenExclusive, (socket) => {
      if (socket) resolve({ socket, port: uWS.us_socket_local_port(socket) })
      else {
        const message = `port ${config.port} on ${config.host} is taken or not allowed; set PORT to another`
        reject(new StartError(message, 1))
      }
    })
  })
}
