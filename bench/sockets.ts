// Raw sockets to a hub, plain or with TLS: what a load opens thousands of. Certificates are always checked;
// a private authority is trusted by `trustAuthority`, never by switching the check off.
import { readFileSync } from 'node:fs'
import { connect, isIP, type Socket, type TcpNetConnectOpts } from 'node:net'
import {
  connect as connectTls,
  createSecureContext,
  getCACertificates,
  setDefaultCACertificates,
  type SecureContext,
} from 'node:tls'

export interface Place {
  host: string
  port: number
  secure: boolean
}

export function placeOf(origin: string): Place {
  const { hostname, port, protocol } = new URL(origin)
  const secure = protocol === 'https:'
  // An IPv6 address stands in brackets in an origin only.
  const host = hostname.replace(/^\[(.*)\]$/, '$1')
  return { host, port: Number(port || (secure ? 443 : 80)), secure }
}

let context: SecureContext | undefined

/** Opens a socket; what is written before it is connected waits. */
export function openSocket(place: Place, more: Partial<TcpNetConnectOpts> = {}): Socket {
  const { host, port, secure } = place
  if (!secure) return connect({ host, port, noDelay: true, ...more })
  // One context for all: each would read every trusted authority anew.
  context ??= createSecureContext()
  const servername = isIP(host) ? {} : { servername: host }
  const socket = connectTls({ host, port, secureContext: context, ...servername, ...more })
  return socket.setNoDelay(true)
}

/** Resolves once the socket may be used, TLS agreed on. */
export function connected(place: Place, socket: Socket): Promise<Socket> {
  return new Promise((resolve, reject) => {
    socket.once('error', reject)
    socket.once(place.secure ? 'secureConnect' : 'connect', () => {
      socket.off('error', reject)
      resolve(socket)
    })
  })
}

/**
 * Trusts the authorities of a PEM file, beside those of the machine, in this process and in those it starts
 * from now on. Throws when the file can't be read or holds no certificate.
 */
export function trustAuthority(file: string): void {
  const pem = readFileSync(file, 'utf8')
  setDefaultCACertificates([...getCACertificates('default'), pem])
  process.env['NODE_EXTRA_CA_CERTS'] = file
  context = undefined
}
