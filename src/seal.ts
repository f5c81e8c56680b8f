// Authenticated encryption of small secrets, at rest and between hubs: AES-256-GCM. Keys come from the caller.
import { createCipheriv, createDecipheriv, hkdfSync, randomBytes } from 'node:crypto'

const nonceBytes = 12
const tagBytes = 16

/** Nonce, tag and ciphertext in one buffer. */
export function seal(key: Buffer, plain: string): Buffer {
  return sealBytes(key, Buffer.from(plain, 'utf8'))
}

/** What `seal` sealed. Throws when the key is another one or a bit was changed. */
export function unseal(key: Buffer, bytes: Buffer): string {
  return unsealBytes(key, bytes).toString('utf8')
}

/** `context` is not in what comes back, and must be the same to open it. */
export function sealBytes(key: Buffer, plain: Uint8Array, context = ''): Buffer {
  const nonce = randomBytes(nonceBytes)
  const cipher = createCipheriv('aes-256-gcm', key, nonce).setAAD(Buffer.from(context))
  const sealed = Buffer.concat([cipher.update(plain), cipher.final()])
  return Buffer.concat([nonce, cipher.getAuthTag(), sealed])
}

/** Throws when key or context is another one or a bit was changed. */
export function unsealBytes(key: Buffer, bytes: Buffer, context = ''): Buffer {
  const decipher = createDecipheriv('aes-256-gcm', key, bytes.subarray(0, nonceBytes), {
    authTagLength: tagBytes,
  }).setAAD(Buffer.from(context))
  decipher.setAuthTag(bytes.subarray(nonceBytes, nonceBytes + tagBytes))
  const plain = decipher.update(bytes.subarray(nonceBytes + tagBytes))
  return Buffer.concat([plain, decipher.final()])
}

/** The key that seals first, then the one that may still open: those of JWT_SECRET and JWT_SECRET_PREVIOUS. */
export function keysFrom(secret: string, previous: string | undefined, purpose: string): Buffer[] {
  const secrets = previous === undefined ? [secret] : [secret, previous]
  return secrets.map((one) => keyFrom(one, purpose))
}

/** A 256-bit key that only who knows `secret` (of full entropy, no password) can derive. */
export function keyFrom(secret: string, purpose: string): Buffer {
  return Buffer.from(hkdfSync('sha256', secret, '', `muster ${purpose}`, 32))
}
