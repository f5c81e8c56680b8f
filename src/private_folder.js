// The folder for what may be made again at any time but is run as code: nobody else may write in it.
// JavaScript, since `start.js` needs it before anything with types is loaded.
import { existsSync, lstatSync, mkdirSync, realpathSync } from 'node:fs'
import { homedir } from 'node:os'
import { dirname, isAbsolute, join } from 'node:path'

/**
 * `muster` in the user's cache folder.
 * @returns {string}
 */
export function cacheFolder() {
  const xdg = process.env['XDG_CACHE_HOME']
  // The XDG specification: relative paths are invalid and to be ignored.
  return join(xdg && isAbsolute(xdg) ? xdg : join(homedir(), '.cache'), 'muster')
}

/**
 * Makes the folder if need be; undefined where another user could change what is in it.
 * @param {string} folder
 * @returns {string | undefined}
 */
export function privateFolder(folder) {
  try {
    // Not `recursive`: Node loops for ever below a file system that answers ENOENT, like /proc.
    if (!existsSync(dirname(folder))) mkdirSync(dirname(folder), { mode: 0o700 })
    if (!existsSync(folder)) mkdirSync(folder, { mode: 0o700 })
    const found = lstatSync(folder)
    if (!found.isDirectory() || found.uid !== process.geteuid?.() || found.mode & 0o077) return
    return parentsAreSafe(realpathSync(folder)) ? folder : undefined
  } catch {
    // No home, or a read-only one: the caller has another place.
    return undefined
  }
}

/**
 * True when nobody but root and us can put another folder in this one's place.
 * @param {string} folder
 * @returns {boolean}
 */
function parentsAreSafe(folder) {
  const parent = dirname(folder)
  if (parent === folder) return true
  const { uid, mode } = lstatSync(parent)
  const ownedByUs = uid === 0 || uid === process.geteuid?.()
  const othersMayRename = (mode & 0o022) !== 0 && (mode & 0o1000) === 0
  return ownedByUs && !othersMayRename && parentsAreSafe(parent)
}
