// What a shard says to the front: gathered while mail is dealt with, one message for all that comes of it.
import type { MessagePort } from 'node:worker_threads'
import type { FrontMessage, HubFrame, ToFront } from '../src/protocol.ts'
import { commandFrame } from './command_forms.ts'
import type { Device, OpenCommand } from './device_state.ts'

export class FrontPost {
  private mail: ToFront[] = []
  private readonly port: MessagePort

  constructor(port: MessagePort) {
    this.port = port
  }

  tell(message: FrontMessage): void {
    this.mail.push(message)
  }

  /** A frame for an agent; none where its device has gone. */
  frame(device: Device | undefined, frame: HubFrame): void {
    if (device !== undefined) this.mail.push(device.conn, JSON.stringify(frame))
  }

  /** A command's frame, whose going out the front confirms. */
  command(device: Device, command: OpenCommand, payload: string): void {
    const { id } = command
    const text = commandFrame(command, payload)
    this.tell({ type: 'command', conn: device.conn, id, text })
    // Asked for while the frame was being made, and so told to an agent that did not know the id.
    if (command.cancelRequested) this.frame(device, { type: 'cancel', id })
  }

  flush(): void {
    if (this.mail.length === 0) return
    this.port.postMessage({ mail: this.mail })
    this.mail = []
  }
}
