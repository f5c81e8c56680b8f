// Frames and the two directions of a terminal by value: every frame survives its bytes, nonsense is none, and no
// interleaving of lost sockets loses or doubles a byte.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import fc from 'fast-check'
import type { Actor } from '../src/auth.ts'
import { newId } from '../src/ids.ts'
import { TerminalClient } from '../src/terminal_client.ts'
import {
  dataBytesMax,
  decodeBase,
  decodeExit,
  decodeFrame,
  decodeSize,
  decodeText,
  encodeBase,
  encodeExit,
  encodeFrame,
  encodeSize,
  encodeText,
  frameHeaderBytes,
  frameKinds,
  isResumed,
  textBytesMax,
  windowBytes,
  type FrameKind,
} from '../src/terminal_frames.ts'
import { TerminalSession } from '../src/terminal_session.ts'
import { Incoming, Outgoing } from '../src/terminal_streams.ts'

const kinds = Object.keys(frameKinds) as FrameKind[]
const id = `term-${newId()}`
const bodies = fc.uint8Array({ maxLength: 200 })

describe('a frame', () => {
  test('survives its bytes', () => {
    const seqs = fc.oneof(fc.maxSafeNat(), fc.constantFrom(0, 2 ** 32, Number.MAX_SAFE_INTEGER))
    fc.assert(
      fc.property(fc.constantFrom(...kinds), seqs, bodies, (kind, seq, body) => {
        const frame = decodeFrame(encodeFrame(kind, id, seq, body))
        assert.deepEqual(frame, { kind, id, seq, body })
      }),
    )
  })

  test('is laid out as the contract says', () => {
    const frame = encodeFrame('data', id, 0x0102030405, new Uint8Array([9]))
    assert.equal(frame[0], 3)
    assert.equal(Buffer.from(frame.subarray(1, 42)).toString('ascii'), id)
    assert.deepEqual([...frame.subarray(42)], [0, 0, 0, 1, 2, 3, 4, 5, 9])
  })

  test('is none for whatever else comes', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 120 }), (noise) => {
        assert.equal(decodeFrame(noise), undefined)
      }),
    )
    const good = encodeFrame('data', id, 0)
    for (const kind of [0, 8, 255]) {
      assert.equal(
        decodeFrame(Uint8Array.from(good, (byte, at) => (at === 0 ? kind : byte))),
        undefined,
      )
    }
    assert.equal(decodeFrame(good.subarray(0, frameHeaderBytes - 1)), undefined)
    assert.equal(decodeFrame(encodeFrame('data', id.toUpperCase(), 0)), undefined)
    assert.equal(
      decodeFrame(encodeFrame('data', id, 0, new Uint8Array(dataBytesMax + 1))),
      undefined,
    )
    const far = Uint8Array.from(good)
    far[42] = 1
    assert.equal(decodeFrame(far), undefined)
  })

  test('carries sizes, bases, exits and sentences', () => {
    assert.deepEqual(decodeSize(encodeSize({ cols: 1000, rows: 1 })), { cols: 1000, rows: 1 })
    for (const cols of [0, 1001, 65_535])
      assert.equal(decodeSize(encodeSize({ cols, rows: 9 })), undefined)
    assert.equal(decodeSize(new Uint8Array(3)), undefined)
    assert.deepEqual(
      [true, false].map((is) => isResumed(encodeSize({ cols: 1, rows: 1 }, is))),
      [true, false],
    )
    assert.equal(decodeBase(encodeBase(2 ** 40)), 2 ** 40)
    assert.equal(decodeBase(new Uint8Array(7)), undefined)
    assert.deepEqual(decodeExit(encodeExit(-1, 'SIGHUP')), { exitCode: -1, signal: 'SIGHUP' })
    assert.equal(decodeExit(new Uint8Array(3)), undefined)
    assert.equal(decodeText(encodeText('wörd\u001b[31m\n\u009b')), 'wörd [31m  ')
    assert.equal(encodeText('x'.repeat(5000)).length, textBytesMax)
  })
})

/** What a test does between two looks at the whole. */
type Step =
  | { do: 'write' | 'type'; bytes: number }
  | { do: 'drop operator' | 'drop agent' }
  | { do: 'deliver'; frames: number }

const steps: fc.Arbitrary<Step[]> = fc.array(
  fc.oneof(
    {
      weight: 4,
      arbitrary: fc.record({
        do: fc.constantFrom('write', 'type'),
        bytes: fc.integer({ min: 1, max: 70_000 }),
      }),
    },
    {
      weight: 6,
      arbitrary: fc.record({ do: fc.constant('deliver'), frames: fc.integer({ min: 1, max: 30 }) }),
    },
    { weight: 2, arbitrary: fc.record({ do: fc.constantFrom('drop operator', 'drop agent') }) },
  ) as fc.Arbitrary<Step>,
  { maxLength: 60 },
)

const nobody: Actor = {
  userId: '',
  sessionId: '',
  email: '',
  role: 'technician',
  orgId: null,
  siteIds: null,
}

/** Bytes that tell where they belong. */
function pattern(from: number, length: number): Buffer {
  return Buffer.from(
    Array.from({ length }, (_, at) => ((from + at) * 31 + ((from + at) >> 8)) & 0xff),
  )
}

/** Both ends and the wires between them, which lose what is on them when a socket is lost. */
class World {
  shown: Buffer = Buffer.alloc(0)
  taken: Buffer = Buffer.alloc(0)
  written = 0
  typed = 0
  private toAgent: Uint8Array[] = []
  private toOperator: Uint8Array[] = []
  private readonly output = new Outgoing()
  private readonly input = new Incoming()
  /** The hub between them. */
  private readonly session = new TerminalSession(
    { id, orgId: '', siteId: '', deviceId: '' },
    nobody,
    { cols: 80, rows: 24 },
  )
  private readonly client = new TerminalClient(
    id,
    { cols: 80, rows: 24 },
    {
      output: (piece, done) => {
        this.shown = Buffer.concat([this.shown, piece])
        done()
      },
      opened() {},
      exit() {},
      closed() {},
    },
  )

  constructor() {
    this.connect()
  }

  run(step: Step): void {
    switch (step.do) {
      case 'write':
        // A program waits when the window is full.
        if (this.output.kept >= windowBytes) return
        this.output.push(pattern(this.written, step.bytes))
        this.written += step.bytes
        return this.pump()
      case 'type':
        this.client.type(pattern(this.typed, step.bytes))
        this.typed += step.bytes
        return
      case 'deliver':
        return this.deliver(step.frames)
      case 'drop operator':
        this.client.disconnected()
        this.toOperator = []
        this.toAgent = []
        return this.connect()
      case 'drop agent':
        this.toOperator = []
        this.toAgent = [this.session.openFrame()]
        return
    }
  }

  deliver(frames: number): void {
    for (let n = 0; n < frames; n++) {
      const down = this.toAgent.shift()
      if (down) this.agentTakes(down)
      const up = this.toOperator.shift()
      if (up) this.client.receive(up)
    }
  }

  settle(): void {
    while (this.toAgent.length > 0 || this.toOperator.length > 0) this.deliver(100)
  }

  private connect(): void {
    this.session.agent = 1
    this.client.connected((bytes) => {
      const frame = decodeFrame(bytes)
      assert.ok(frame)
      assert.equal(this.session.passesFromOperator(frame), true)
      this.toAgent.push(frame.kind === 'open' ? this.session.openFrame() : bytes)
    })
  }

  private agentTakes(bytesOfFrame: Uint8Array): void {
    const frame = decodeFrame(bytesOfFrame)
    assert.ok(frame)
    if (frame.kind === 'open') {
      const base = this.output.resume(frame.seq)
      this.say(encodeFrame('opened', id, this.input.at, encodeBase(base)))
    } else if (frame.kind === 'ack') {
      this.output.ack(frame.seq)
    } else if (frame.kind === 'data') {
      const fresh = this.input.take(frame.seq, frame.body)
      if (!fresh) return
      this.taken = Buffer.concat([this.taken, fresh])
      this.say(encodeFrame('ack', id, this.input.at))
    }
    this.pump()
  }

  private say(bytes: Uint8Array): void {
    const frame = decodeFrame(bytes)
    assert.ok(frame)
    assert.ok(this.session.passesFromAgent(frame), frame.kind)
    this.toOperator.push(bytes)
  }

  private pump(): void {
    for (let next = this.output.next(); next; next = this.output.next()) {
      this.say(encodeFrame('data', id, next.seq, next.body))
    }
  }
}

describe('two ends', () => {
  test('lose and double nothing, however their sockets are lost', () => {
    fc.assert(
      fc.property(steps, (story) => {
        const world = new World()
        for (const step of story) world.run(step)
        world.settle()
        assert.ok(world.shown.equals(pattern(0, world.written)), 'output')
        assert.ok(world.taken.equals(pattern(0, world.typed)), 'input')
      }),
      { numRuns: 300 },
    )
  })

  test('keep no more than a window on its way', () => {
    const out = new Outgoing()
    out.push(new Uint8Array(windowBytes * 3))
    let sent = 0
    for (let next = out.next(); next; next = out.next()) sent += next.body.length
    assert.equal(sent, windowBytes)
    out.ack(windowBytes + 1) // more than was ever sent, but written: taken as it is
    out.ack(windowBytes * 9)
    assert.equal(out.acked, windowBytes + 1)
    assert.equal(out.next()?.seq, windowBytes + 1)
  })

  test('an other end that counts otherwise gets what was not sent, and no more', () => {
    const out = new Outgoing()
    out.push(Buffer.from('sent'))
    out.next()
    out.push(Buffer.from('unsent'))
    out.renumber(1000)
    const next = out.next()
    assert.equal(next?.seq, 1000)
    assert.equal(Buffer.from(next?.body ?? []).toString(), 'unsent')
  })

  test('a frame that leaves a gap is not taken, one that overlaps gives what is new', () => {
    const incoming = new Incoming()
    assert.equal(incoming.take(1, Buffer.from('x')), undefined)
    assert.equal(Buffer.from(incoming.take(0, Buffer.from('abc')) ?? []).toString(), 'abc')
    assert.equal(incoming.take(0, Buffer.from('abc')), undefined)
    assert.equal(Buffer.from(incoming.take(1, Buffer.from('bcd')) ?? []).toString(), 'd')
    assert.equal(incoming.at, 4)
  })
})
