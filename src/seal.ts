// Authenticated encryption of small secrets at rest: AES-256-GCM. Keys come from the caller.
import { createCipheriv, createDecipheriv, hkdfSync, randomBytes } from 'node:crypto'

const nonceBytes = 12
const tagBytes = 16

/** Nonce, tag and ciphertext in one buffer. */
export function seal(key: Buffer, plain: string): Buffer {
  const nonce = randomBytes(nonceBytes)
  const cipher = createCipheriv('aes-256-gcm', key, nonce)
  const sealed = Buffer.concat([cipher.update(plain, 'utf8'), cipher.final()])
  return Buffer.concat([nonce, cipher.getAuthTag(), sealed])
}

/** What `seal` sealed. Throws when the key is another one or a bit was changed. */
export function unseal(key: Buffer, bytes: Buffer): string {
  const decipher = createDecipheriv('aes-256-gcm', key, bytes.subarray(0, nonceBytes), {
    authTagLength: tagBytes,
  })
  decipher.setAuthTag(bytes.subarray(nonceBytes, nonceBytes + tagBytes))
  const plain = decipher.update(bytes.subarray(nonceBytes + tagBytes))
  return Buffer.concat([plain, decipher.final()]).toString('utf8')
}

/** A 256-bit key that only who knows `secret` (of full entropy, no password) can derive. */
export function keyFrom(secret: string, purpose: string): Buffer {
  return Buffer.from(hkdfSync('sha256', secret, '', `muster ${purpose}`, 32))
}
