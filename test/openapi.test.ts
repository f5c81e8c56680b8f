// The API document: valid, complete, and true to the table of routes.
import { Validator } from '@seriousme/openapi-schema-validator'
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { operations, roles } from '../src/auth.ts'
import { statusOf } from '../src/errors.ts'
import { openapi } from '../src/openapi.ts'
import { routes } from '../src/resources/index.ts'

const origin = 'https://muster.example.com'
const text = openapi(routes, { version: '1.2.3', publicOrigin: origin })
const document = JSON.parse(text)

/** The operation of a route, as a reader of the document finds it. */
function operation(method: string, path: string) {
  return document.paths[path.replace(/:(\w+)/g, '{$1}')]?.[method.toLowerCase()]
}

test('the document is valid OpenAPI 3.1', async () => {
  const validator = new Validator()
  assert.deepEqual(await validator.validate(document), { valid: true })
  assert.equal(validator.version, '3.1')
})

test('every reference leads somewhere', () => {
  for (const [, path] of text.matchAll(/"\$ref":"#\/([^"]+)"/g)) {
    const target = path?.split('/').reduce((value, key) => value?.[key], document)
    assert.ok(target, path)
  }
})

test('every route is in it, under its own name', () => {
  for (const route of routes) {
    assert.equal(operation(route.method, route.path)?.operationId, route.name, route.path)
  }
  const names = [...text.matchAll(/"operationId":"(\w+)"/g)].map((match) => match[1])
  assert.equal(new Set(names).size, names.length)
})

test('every operation names who may call it', () => {
  for (const route of routes) {
    const { security, ...found } = operation(route.method, route.path)
    if (route.may === 'public') assert.ok(security, route.name)
    else {
      const may: readonly string[] = route.may === 'signed-in' ? roles : operations[route.may]
      assert.deepEqual(found['x-roles'], may, route.name)
      assert.equal(security, undefined, route.name)
    }
  }
})

test('what a route takes and answers is told by its own schemas', () => {
  for (const route of routes) {
    const { parameters = [], requestBody, responses } = operation(route.method, route.path)
    const named = (place: string) =>
      parameters.filter((p: { in: string }) => p.in === place).map((p: { name: string }) => p.name)
    assert.deepEqual(named('query'), Object.keys(route.query?.schema.properties ?? {}))
    assert.deepEqual(named('path'), Object.keys(route.params?.schema.properties ?? {}))
    assert.equal(requestBody !== undefined, route.body !== undefined, route.name)
    for (const status of Object.keys(route.responses)) assert.ok(responses[status], route.name)
  }
})

test('every error code is told with its status', () => {
  const { responses, schemas } = document.components
  const codes = Object.keys(statusOf)
  assert.deepEqual(schemas.Error.properties.error.properties.code.enum, codes)
  const told = Object.values<{ description: string }>(responses).map((one) => one.description)
  for (const code of codes)
    assert.ok(
      told.some((line) => line.includes(code)),
      code,
    )
})

test('a resource is one named schema wherever it is answered', () => {
  const { schema } = operation('GET', '/organizations/:id').responses[200].content[
    'application/json'
  ]
  assert.deepEqual(schema, { $ref: '#/components/schemas/Organization' })
  const list = operation('GET', '/organizations').responses[200].content['application/json'].schema
  assert.deepEqual(list.properties.data.items, schema)
  assert.ok(document.components.schemas.Organization.properties.slug)
})

test('paths are below the API, but for those that name their own server', () => {
  assert.deepEqual(document.servers, [{ url: `${origin}/api/v1` }])
  for (const route of routes) {
    const { servers } = document.paths[route.path.replace(/:(\w+)/g, '{$1}')]
    assert.deepEqual(servers, route.at === 'origin' ? [{ url: origin }] : undefined, route.name)
  }
})

test('what is no route is told too: the sockets, the scrape token', () => {
  const socket = operation('GET', '/agents/{deviceId}/ws')
  assert.deepEqual(socket.security, [{ agentToken: [] }])
  assert.ok(socket.responses[101])
  const terminal = operation('GET', '/terminals/{id}/ws')
  assert.deepEqual(terminal.security, [])
  assert.ok(terminal.responses[101])
  for (const named of terminal.description.match(/(?<=`)create\w+/g)) {
    assert.ok(
      routes.some(({ name }) => name === named),
      named,
    )
  }
  const metrics = operation('GET', '/metrics')
  assert.deepEqual(metrics.security, [{ scrapeToken: [] }])
  assert.deepEqual(Object.keys(metrics.responses[200].content), ['text/plain; version=0.0.4'])
  const create = operation('POST', '/devices/:id/commands')
  assert.ok(create.parameters.some((p: { name: string }) => p.name === 'Idempotency-Key'))
})
