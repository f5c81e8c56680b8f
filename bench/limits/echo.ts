// The floor of a round trip: node:net bytes back as they came. One HTTP answer first, so that it is
// started and awaited like every other program: 200 to /health/ready, 101 to anything else.
import { createServer } from 'node:net'

const server = createServer({ noDelay: true }, (socket) => {
  socket.on('error', () => socket.destroy())
  socket.once('data', (request) => {
    const ready = request.toString('latin1').startsWith('GET /health/ready ')
    if (ready) socket.end('HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok')
    else {
      socket.write('HTTP/1.1 101 Switching Protocols\r\n\r\n')
      socket.on('data', (bytes) => socket.write(bytes))
    }
  })
})
server.listen(Number(process.env['PORT']), process.env['HOST'])
process.once('SIGTERM', () => process.exit(0))
