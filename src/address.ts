// Where a caller is: the address behind trusted proxies, in one spelling. Believes nothing that a proxy
// not named in TRUSTED_PROXIES could have written.
import { BlockList, isIP, SocketAddress } from 'node:net'

/**
 * The caller's address: the socket's, or where that is a trusted proxy, the first address of
 * X-Forwarded-For from the right that is none. `trusted` holds addresses and CIDRs.
 */
export function clientAddress(
  remote: string,
  forwardedFor: string,
  trusted: readonly string[],
): string {
  let address = normalAddress(remote) ?? ''
  if (trusted.length === 0 || forwardedFor === '') return address
  const proxies = proxyList(trusted)
  for (const hop of forwardedFor.split(',').toReversed()) {
    if (!isIn(proxies, address)) return address
    const next = normalAddress(withoutPort(hop.trim()))
    // A proxy we trust wrote something that is no address: it is the last we know.
    if (next === undefined) return address
    address = next
  }
  return address
}

/**
 * An address in its one spelling: IPv4-mapped IPv6 as IPv4, other IPv6 compressed and lower case,
 * without a zone. Undefined when it is none.
 */
export function normalAddress(text: string): string | undefined {
  const bare = text.replace(/%.*$/s, '')
  const family = isIP(bare)
  if (family === 0) return undefined
  if (family === 4) return bare
  const { address } = new SocketAddress({ address: bare, family: 'ipv6' })
  return /^::ffff:(\d+\.\d+\.\d+\.\d+)$/.exec(address)?.[1] ?? address
}

/** What rates count: an IPv4 address, or the /64 of an IPv6 one, which is one customer's. */
export function networkOf(address: string): string {
  if (isIP(address) !== 6) return address
  const [head = '', tail] = address.split('::')
  const left = head.split(':').filter(Boolean)
  const right = (tail ?? '').split(':').filter(Boolean)
  const zeros = tail === undefined ? 0 : 8 - left.length - right.length
  const groups = [...left, ...Array<string>(zeros).fill('0'), ...right]
  return `${groups.slice(0, 4).join(':')}::/64`
}

const lists = new WeakMap<readonly string[], BlockList>()

// The configuration's array never changes, so that its list is built once.
function proxyList(trusted: readonly string[]): BlockList {
  const known = lists.get(trusted)
  if (known) return known
  const list = addressList(trusted)
  lists.set(trusted, list)
  return list
}

/** A list of addresses and CIDRs, to be asked with `isIn`. */
export function addressList(cidrs: readonly string[]): BlockList {
  const list = new BlockList()
  for (const cidr of cidrs) {
    const [text = '', bits] = cidr.split('/')
    const address = normalAddress(text) ?? text
    const family = isIP(address) === 6 ? 'ipv6' : 'ipv4'
    if (bits === undefined) list.addAddress(address, family)
    else list.addSubnet(address, prefixBits(text, Number(bits)), family)
  }
  return list
}

// ::ffff:10.0.0.0/104 became 10.0.0.0, whose prefix is 96 bits shorter.
function prefixBits(text: string, bits: number): number {
  return isIP(text) === 6 && isIP(normalAddress(text) ?? '') === 4 ? Math.max(0, bits - 96) : bits
}

/** Whether a list holds an address in its normal spelling. */
export function isIn(list: BlockList, address: string): boolean {
  return address !== '' && list.check(address, isIP(address) === 6 ? 'ipv6' : 'ipv4')
}

/** Some proxies write ports: `192.0.2.1:443`, `[2001:db8::1]:443`. */
function withoutPort(hop: string): string {
  const match = /^\[([^\]]*)\](?::\d+)?$/.exec(hop) ?? /^([\d.]+):\d+$/.exec(hop)
  return match?.[1] ?? hop
}
