import assert from 'node:assert/strict'
import { closeSync, fstatSync, openSync, readSync } from 'node:fs'
import { test } from 'node:test'
import fc from 'fast-check'
import { declaredBytes, headerBytes, platformOf } from '../src/executable.ts'

test('the program that runs this test is told by its header', () => {
  const header = Buffer.alloc(headerBytes)
  const file = openSync(process.execPath, 'r')
  readSync(file, header)
  closeSync(file)
  const os = { linux: 'linux', darwin: 'darwin', win32: 'windows' }[process.platform as 'linux']
  const arch = { x64: 'amd64', arm64: 'arm64' }[process.arch as 'x64']
  assert.deepEqual(platformOf(header), { os, arch })
})

test('a program is as long as its header says, and cut off where it is shorter', () => {
  const header = Buffer.alloc(headerBytes)
  const file = openSync(process.execPath, 'r')
  readSync(file, header)
  const { size } = fstatSync(file)
  closeSync(file)
  const declared = declaredBytes(header)
  assert.ok(declared > headerBytes && declared <= size, `${declared} of ${size}`)
  assert.equal(declaredBytes(Buffer.from('#!/bin/sh')), 0)
  const segment = mach(0x0100000c)
  const command = Buffer.alloc(72)
  command.writeUInt32LE(0x19, 0)
  command.writeUInt32LE(72, 4)
  command.writeBigUInt64LE(16_384n, 40)
  command.writeBigUInt64LE(1_000n, 48)
  segment.writeUInt32LE(1, 16)
  assert.equal(declaredBytes(Buffer.concat([segment, command])), 17_384)
  const section = pe(0x8664)
  section.writeUInt16LE(1, 0x80 + 6)
  section.writeUInt32LE(512, 0x80 + 24 + 16)
  section.writeUInt32LE(1024, 0x80 + 24 + 20)
  assert.equal(declaredBytes(section), 1_536)
})

test('executables of every platform are told apart', () => {
  assert.deepEqual(platformOf(elf(0x3e)), { os: 'linux', arch: 'amd64' })
  assert.deepEqual(platformOf(elf(0xb7)), { os: 'linux', arch: 'arm64' })
  assert.deepEqual(platformOf(mach(0x01000007)), { os: 'darwin', arch: 'amd64' })
  assert.deepEqual(platformOf(mach(0x0100000c)), { os: 'darwin', arch: 'arm64' })
  assert.deepEqual(platformOf(pe(0x8664)), { os: 'windows', arch: 'amd64' })
  assert.deepEqual(platformOf(pe(0xaa64)), { os: 'windows', arch: 'arm64' })
})

test('what no agent runs on, and what is no program, is nothing', () => {
  const bigEndian = elf(0x3e)
  bigEndian[5] = 2
  const library = pe(0x8664)
  library.writeUInt16LE(0x2002, 0x80 + 22)
  for (const header of [elf(0x28), elf(0xf3), bigEndian, mach(7), pe(0x14c), library]) {
    assert.equal(platformOf(header), undefined)
  }
  assert.equal(platformOf(Buffer.from('#!/bin/sh\n')), undefined)
  assert.equal(platformOf(Buffer.alloc(0)), undefined)
})

test('no header makes it fail', () => {
  const starts = [Buffer.alloc(0), elf(0x3e), mach(0x0100000c), pe(0x8664)]
  fc.assert(
    fc.property(fc.constantFrom(...starts), fc.uint8Array({ maxLength: 200 }), (start, rest) => {
      const header = Buffer.concat([start.subarray(0, rest.length), rest])
      platformOf(header)
      declaredBytes(header)
    }),
  )
})

function elf(machine: number): Buffer {
  const header = Buffer.alloc(64)
  header.write('\x7fELF', 'latin1')
  header.set([2, 1], 4)
  header.writeUInt16LE(2, 16)
  header.writeUInt16LE(machine, 18)
  return header
}

function mach(cpu: number): Buffer {
  const header = Buffer.alloc(32)
  header.writeUInt32LE(0xfeedfacf, 0)
  header.writeUInt32LE(cpu, 4)
  header.writeUInt32LE(2, 12)
  return header
}

function pe(machine: number): Buffer {
  const header = Buffer.alloc(0x200)
  header.write('MZ', 'latin1')
  header.writeUInt32LE(0x80, 60)
  header.write('PE\0\0', 0x80, 'latin1')
  header.writeUInt16LE(machine, 0x84)
  header.writeUInt16LE(0x0022, 0x80 + 22)
  return header
}
