// The public keys that this agent was built with: base64 of 32 bytes each. None in a checkout, nor in a
// binary that was built without; then those of enrollment count.

/** Put in by the build of a binary. */
declare const MUSTER_RELEASE_KEYS: readonly string[] | undefined

export const compiledKeys: readonly string[] =
  typeof MUSTER_RELEASE_KEYS === 'undefined' ? [] : MUSTER_RELEASE_KEYS
