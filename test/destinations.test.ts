import assert from 'node:assert/strict'
import { test } from 'node:test'
import { destinations } from '../src/destinations.ts'

const open = destinations([])

test('the public internet may be reached', () => {
  for (const address of ['8.8.8.8', '1.1.1.1', '99.255.255.255', '2606:4700::1111', '2a00::1']) {
    assert.ok(open.permits(address), address)
  }
})

test('nothing else may be reached, in whatever spelling', () => {
  const closed = `0.0.0.0 10.1.2.3 100.64.0.1 100.100.100.200 127.0.0.1 127.255.255.254 169.254.169.254
    172.16.0.1 172.31.255.255 192.0.0.192 192.168.1.1 198.18.0.1 203.0.113.7 224.0.0.1 240.0.0.1
    255.255.255.255 168.63.129.16 :: ::1 ::ffff:127.0.0.1 ::ffff:7f00:1 ::ffff:169.254.169.254
    0:0:0:0:0:ffff:a9fe:a9fe ::127.0.0.1 fe80::1 fe80::1%eth0 fc00::1 fd00:ec2::254 fec0::1 ff02::1
    64:ff9b::7f00:1 64:ff9b:1::1 2001::1 2001:db8::1 2002:7f00:1::1 3fff::1 100::1 nonsense`
  for (const address of closed.split(/\s+/)) assert.ok(!open.permits(address), address)
  assert.ok(!open.permits(''))
})

test('exceptions open what they name and no more', () => {
  const some = destinations(['10.1.0.0/16', '127.0.0.1', 'fd00::/8'])
  for (const address of ['10.1.2.3', '127.0.0.1', '::ffff:127.0.0.1', 'fd12::1', '8.8.8.8']) {
    assert.ok(some.permits(address), address)
  }
  for (const address of ['10.2.0.1', '127.0.0.2', '::1', 'fe80::1']) {
    assert.ok(!some.permits(address), address)
  }
})

test('a URL is refused for what it shows by itself', () => {
  const refusals: [string, RegExp][] = [
    ['nonsense', /no URL/],
    ['/relative', /no URL/],
    ['ftp://example.com/', /neither/],
    ['file:///etc/passwd', /neither/],
    ['https://user:pass@example.com/', /credentials/],
    ['https://user@example.com/', /credentials/],
    ['https://example.com/#x', /fragment/],
    ['http://127.0.0.1/', /may not reach/],
    ['http://2130706433/', /may not reach/],
    ['http://0x7f.1/', /may not reach/],
    ['http://0177.0.0.1/', /may not reach/],
    ['http://[::1]:8080/', /may not reach/],
    ['http://[::ffff:10.0.0.1]/', /may not reach/],
    ['http://169.254.169.254/latest/meta-data', /may not reach/],
  ]
  for (const [url, reason] of refusals) assert.match(open.refusal(url) ?? '', reason, url)
  for (const url of ['https://example.com/hook?a=b', 'http://8.8.8.8:81/', 'https://[2a00::1]/']) {
    assert.equal(open.refusal(url), undefined, url)
  }
})
