// Where a webhook may go: the public internet, and what WEBHOOK_ALLOWED_CIDRS opens. Judges addresses, not
// names: whoever connects must go to the very address that was judged.
import { isIP } from 'node:net'
import { addressList, isIn, normalAddress } from './address.ts'

export interface Destinations {
  /** True when a connection to this address may be made. */
  permits(address: string): boolean
  /** Why a URL can't be a destination, as far as it tells by itself; undefined when it can. */
  refusal(url: string): string | undefined
}

/** What of IPv4 is not the public internet, by the special-purpose registry of IANA, and who serves secrets. */
const closedIPv4 = [
  '0.0.0.0/8',
  '10.0.0.0/8',
  // Carrier-grade NAT; also the metadata of Alibaba.
  '100.64.0.0/10',
  '127.0.0.0/8',
  // Link-local; also the metadata of most clouds.
  '169.254.0.0/16',
  '172.16.0.0/12',
  // Also the metadata of Oracle.
  '192.0.0.0/24',
  '192.0.2.0/24',
  '192.88.99.0/24',
  '192.168.0.0/16',
  '198.18.0.0/15',
  '198.51.100.0/24',
  '203.0.113.0/24',
  '224.0.0.0/3',
  // The host agent of Azure, although the address is a public one.
  '168.63.129.16',
]

/** What of IPv6 is given out at all; everything else (loopback, local, multicast, NAT64) is closed. */
const openIPv6 = ['2000::/3']

/** Of that, what carries an IPv4 address inside, or is for documents and tests. */
const closedIPv6 = ['2001::/23', '2001:db8::/32', '2002::/16', '3fff::/20']

export function destinations(allowedCidrs: readonly string[]): Destinations {
  const allowed = addressList(allowedCidrs)
  const closed = addressList([...closedIPv4, ...closedIPv6])
  const open = addressList(openIPv6)

  const permits = (text: string) => {
    // An IPv4-mapped address is judged as what it reaches.
    const address = normalAddress(text)
    if (address === undefined) return false
    if (isIn(allowed, address)) return true
    if (isIn(closed, address)) return false
    return isIP(address) === 4 || isIn(open, address)
  }
  return {
    permits,
    refusal(text) {
      if (!URL.canParse(text)) return 'is no URL'
      const url = new URL(text)
      if (url.protocol !== 'https:' && url.protocol !== 'http:') return 'is neither https nor http'
      if (url.username !== '' || url.password !== '') return 'may not hold credentials'
      if (url.hash !== '') return 'may not hold a fragment'
      const host = hostOf(url)
      if (isIP(host) === 0 || permits(host)) return undefined
      return 'points to an address that webhooks may not reach'
    },
  }
}

/** The host of a URL, an IPv6 address without its brackets. */
export function hostOf(url: URL): string {
  return url.hostname.replace(/^\[(.*)\]$/, '$1')
}
