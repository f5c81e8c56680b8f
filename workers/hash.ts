// Hashing threads: argon2id, written and read as PHC strings. CPU and memory, nothing else: a worker
// knows no user and keeps no password.
import { argon2Sync, randomBytes, timingSafeEqual } from 'node:crypto'
import { setPriority } from 'node:os'
import { limits } from '../src/limits.ts'
import type { HashTask } from '../src/passwords.ts'

// Linux alone has a priority per thread; elsewhere this would slow the whole hub.
if (process.platform === 'linux') setPriority(limits.hashNice)

/** The PHC string of a new hash, or whether a password fits one. */
export function answer(task: HashTask): string | boolean {
  return task.phc === undefined ? hashed(task.password) : fits(task.password, task.phc)
}

interface Phc {
  memory: number
  passes: number
  parallelism: number
  salt: Buffer
  tag: Buffer
}

function hashed(password: string): string {
  const phc = {
    memory: limits.argon2MemoryKiB,
    passes: limits.argon2Passes,
    parallelism: limits.argon2Lanes,
    salt: randomBytes(16),
  }
  return format({ ...phc, tag: derive(password, phc, 32) })
}

/** Hashes with the parameters of the stored string, so that raising ours locks nobody out. */
function fits(password: string, text: string): boolean {
  const phc = parse(text)
  return timingSafeEqual(derive(password, phc, phc.tag.length), phc.tag)
}

function derive(password: string, phc: Omit<Phc, 'tag'>, tagLength: number): Buffer {
  const { memory, passes, parallelism, salt } = phc
  const options = { message: password, nonce: salt, memory, passes, parallelism, tagLength }
  return argon2Sync('argon2id', options)
}

function format({ memory, passes, parallelism, salt, tag }: Phc): string {
  const parameters = `m=${memory},t=${passes},p=${parallelism}`
  return `$argon2id$v=19$${parameters}$${unpadded(salt)}$${unpadded(tag)}`
}

function parse(text: string): Phc {
  const match = /^\$argon2id\$v=19\$m=(\d+),t=(\d+),p=(\d+)\$([\w+/]+)\$([\w+/]+)$/.exec(text)
  if (!match) throw new Error('a stored password hash is no argon2id PHC string')
  const [memory = 0, passes = 0, parallelism = 0] = match.slice(1, 4).map(Number)
  const [salt = '', tag = ''] = match.slice(4)
  return {
    memory,
    passes,
    parallelism,
    salt: Buffer.from(salt, 'base64'),
    tag: Buffer.from(tag, 'base64'),
  }
}

function unpadded(bytes: Buffer): string {
  return bytes.toString('base64').replace(/=+$/, '')
}
