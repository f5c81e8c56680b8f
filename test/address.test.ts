import assert from 'node:assert/strict'
import { test } from 'node:test'
import { clientAddress, networkOf, normalAddress } from '../src/address.ts'

const proxies = ['10.0.0.0/8', '2001:db8:ffff::/48', '192.0.2.1']

test('without trusted proxies the header is a stranger’s word', () => {
  assert.equal(clientAddress('198.51.100.9', '1.2.3.4', []), '198.51.100.9')
})

test('a caller who is no proxy can not choose an address', () => {
  assert.equal(clientAddress('198.51.100.9', '1.2.3.4', proxies), '198.51.100.9')
})

test('the header is read from the right through trusted hops only', () => {
  assert.equal(clientAddress('10.0.0.2', '1.2.3.4', proxies), '1.2.3.4')
  assert.equal(clientAddress('10.0.0.2', '6.6.6.6, 1.2.3.4, 10.9.9.9', proxies), '1.2.3.4')
  assert.equal(clientAddress('192.0.2.1', '6.6.6.6,1.2.3.4', proxies), '1.2.3.4')
})

test('when every hop is trusted, the farthest is the caller', () => {
  assert.equal(clientAddress('10.0.0.2', '10.0.0.9, 10.0.0.8', proxies), '10.0.0.9')
})

test('what is no address ends the reading at the last hop that is known', () => {
  assert.equal(clientAddress('10.0.0.2', '1.2.3.4, unknown', proxies), '10.0.0.2')
  assert.equal(clientAddress('10.0.0.2', '1.2.3.4,, 10.0.0.3', proxies), '10.0.0.3')
  assert.equal(clientAddress('10.0.0.2', '', proxies), '10.0.0.2')
  assert.equal(clientAddress('10.0.0.2', "1.2.3.4'; drop table users", proxies), '10.0.0.2')
})

test('ports and brackets that proxies write are no part of the address', () => {
  assert.equal(clientAddress('10.0.0.2', '1.2.3.4:5678', proxies), '1.2.3.4')
  assert.equal(clientAddress('10.0.0.2', '[2001:db8::9]:443', proxies), '2001:db8::9')
})

test('an IPv4 address mapped into IPv6 is the IPv4 address, as socket, hop and proxy', () => {
  const mapped = '0000:0000:0000:0000:0000:ffff:0a00:0002'
  assert.equal(clientAddress(mapped, '::ffff:1.2.3.4', proxies), '1.2.3.4')
  assert.equal(clientAddress('10.1.1.1', '1.2.3.4', ['::ffff:10.0.0.0/104']), '1.2.3.4')
})

test('an IPv6 address has one spelling', () => {
  assert.equal(normalAddress('2001:0DB8:0000:0000:0000:0000:0000:0001'), '2001:db8::1')
  assert.equal(normalAddress('fe80::1%eth0'), 'fe80::1')
  assert.equal(normalAddress('300.1.1.1'), undefined)
  assert.equal(normalAddress(''), undefined)
  assert.equal(clientAddress('2001:db8:ffff::1', '2001:DB8::1', proxies), '2001:db8::1')
})

test('a network is the address, or the /64 in IPv6', () => {
  assert.equal(networkOf('1.2.3.4'), '1.2.3.4')
  assert.equal(networkOf('2001:db8:1:2:3:4:5:6'), '2001:db8:1:2::/64')
  assert.equal(networkOf('2001:db8::1'), '2001:db8:0:0::/64')
  assert.equal(networkOf('::1'), '0:0:0:0::/64')
  assert.equal(networkOf(''), '')
})
