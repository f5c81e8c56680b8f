// A limit program that serves one list and nothing else: see `device_page.ts`.
import { uWS } from '../../src/uws.ts'
import { serveDevicePages } from './device_page.ts'
import { serve } from './serve.ts'

const app = uWS.App()
serveDevicePages(app, process.env['DATABASE_URL'])
serve(app)
