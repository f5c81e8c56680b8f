// What every limit program on uWebSockets.js does alike: says that it is ready, listens where the bench told it to,
// answers JSON, and ends at once.
import type { HttpResponse, TemplatedApp } from 'uWebSockets.js'

export function serve(app: TemplatedApp): void {
  app
    .get('/health/ready', (res) => {
      res.end('{"status":"ok"}')
    })
    .listen(process.env['HOST'] ?? '127.0.0.1', Number(process.env['PORT']), (socket) => {
      if (!socket) throw new Error('the port is taken')
    })
  process.once('SIGTERM', () => {
    app.close()
    process.exit(0)
  })
}

export function reply(res: HttpResponse, status: string, json: string): void {
  res.cork(() => {
    res.writeStatus(status).writeHeader('Content-Type', 'application/json').end(json)
  })
}

/** A limit program that errs is no limit: the run fails, and its log says why. */
export function fail(error: unknown): never {
  process.stderr.write(`${String(error)}\n`)
  process.exit(1)
}
