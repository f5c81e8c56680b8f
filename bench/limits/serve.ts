// What every limit program on uWebSockets.js does alike: says that it is ready, listens where the bench told it to,
// and ends at once.
import type { TemplatedApp } from 'uWebSockets.js'

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
