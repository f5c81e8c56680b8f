// Reading single request headers. Apart from the adapter, so that resources may use it.

/** The token of an Authorization header, or undefined when it is none of the Bearer scheme. */
export function bearer(header: string): string | undefined {
  return /^Bearer +([\x21-\x7e]+)$/i.exec(header)?.[1]
}
