// What `npm start` runs: keeps the compiled form of our files, then starts the hub. From the second start on no
// thread strips types any more. Without types itself, like what it imports first: one file to strip before the
// kept form is known, and Node's stripper is loaded, 20 MB for as long as the hub runs.
import { enableCompileCache } from 'node:module'
import { join } from 'node:path'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { cacheFolder, privateFolder } from './private_folder.js'

// For garbage.ts: threads have it by the flag, this one by a context made after it. First of all, because compiled
// code is kept by flags.
setFlagsFromString('--expose-gc')
globalThis.gc = /** @type {NodeJS.GCFunction} */ (runInNewContext('gc'))

// Code is run from there: nobody else may be able to write it. Without such a folder it goes without.
const folder = privateFolder(cacheFolder())
if (folder !== undefined) {
  const compiled = join(folder, 'compiled')
  enableCompileCache(compiled)
  // Worker threads look here.
  process.env['NODE_COMPILE_CACHE'] = compiled
}

const { start } = await import('./program.ts')
await start()
