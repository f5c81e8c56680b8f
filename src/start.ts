// What `npm start` runs: keeps the compiled form of our files, then starts the hub. On the second start no
// thread strips types any more, which takes a quarter of the memory and a third of the time.
import { enableCompileCache } from 'node:module'
import { join } from 'node:path'
import { cacheFolder, privateFolder } from './private_folder.ts'

// Code is run from there: nobody else may be able to write it. Without such a folder it goes without.
const folder = privateFolder(cacheFolder())
if (folder !== undefined) {
  const compiled = join(folder, 'compiled')
  enableCompileCache(compiled)
  // Worker threads look here.
  process.env['NODE_COMPILE_CACHE'] = compiled
}

const { start } = await import('./main.ts')
await start()
