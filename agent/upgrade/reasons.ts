// Why an upgrade failed: a code for machines and a sentence for people. Codes are part of the contract.

export type Reason =
  /** It runs from a checkout: there is no one file to swap. */
  | 'not_compiled'
  /** Nobody would bring the old version back. */
  | 'not_supervised'
  /** No key was compiled in and none came with enrollment. */
  | 'no_trusted_key'
  | 'releases_unavailable'
  /** The hub offers no such version, or none for this platform. */
  | 'not_offered'
  | 'bad_signature'
  /** Older than what a signed manifest allows. */
  | 'below_minimum'
  /** The program can't be replaced: its folder is read-only or not ours. */
  | 'not_writable'
  | 'disk_full'
  | 'download_failed'
  /** Size or hash are not those of the manifest. */
  | 'bad_checksum'
  | 'wrong_platform'
  /** `version` did not run, or answered another version. */
  | 'cannot_start'
  /** The command's time is over before the trial could begin. */
  | 'no_time_left'
  /** The trial ended before it was connected long enough. */
  | 'crashed'
  /** The trial gave no sign of life. */
  | 'hung'
  /** The trial lived but the hub did not acknowledge three of its heartbeats in time. */
  | 'hub_unreachable'
  /** The supervisor or the device went down during the trial. */
  | 'interrupted'

/** An upgrade that ends here; nothing was swapped. */
export class UpgradeError extends Error {
  readonly reason: Reason

  constructor(reason: Reason, message: string, options?: ErrorOptions) {
    super(message, options)
    this.name = 'UpgradeError'
    this.reason = reason
  }
}
