// The hub's address as a person types it, and where the socket is. Pure; guards the plain-text rule.

import { AgentError, exitCodes } from './errors.ts'

/** The origin of a hub from `--url`, with or without /api/v1. Throws a usage error that names it. */
export function parseHubUrl(text: string, insecure: boolean): string {
  const url = URL.canParse(text) ? new URL(text) : null
  if (!url || !['http:', 'https:'].includes(url.protocol)) {
    throw usage(`--url must be an http(s) address such as https://hub.example.com, not "${text}"`)
  }
  if (url.username || url.password || url.search || url.hash) {
    throw usage('--url must be an origin alone, without user, query or fragment')
  }
  if (!/^(\/api\/v1)?\/*$/.test(url.pathname)) {
    throw usage(`--url must end at the host or at /api/v1, not at "${url.pathname}"`)
  }
  if (url.protocol === 'http:' && !insecure && !isLoopback(url.hostname)) {
    throw usage(`--url ${url.origin} is plain http: the token would be readable; add --insecure`)
  }
  return url.origin
}

/**
 * The socket's full address, from what enrollment answered: a socket URL, or the hub's alone.
 * Throws when an https hub would send the token over a plain socket.
 */
export function socketUrl(websocketUrl: string, deviceId: string, hubUrl: string): string {
  const url = URL.canParse(websocketUrl) ? new URL(websocketUrl) : null
  if (!url || !['ws:', 'wss:'].includes(url.protocol)) {
    throw new AgentError(`the hub answered with an unusable websocketUrl: "${websocketUrl}"`)
  }
  if (url.protocol === 'ws:' && hubUrl.startsWith('https:')) {
    throw new AgentError('the hub is https but its websocketUrl is not wss: refused')
  }
  if (!url.pathname.endsWith('/ws')) {
    url.pathname = `/api/v1/agents/${encodeURIComponent(deviceId)}/ws`
  }
  return url.href
}

/** The same address for a plain request, which answers why a socket was refused. */
export function plainUrl(socketAddress: string): string {
  return socketAddress.replace(/^ws/, 'http')
}

/** Whether a host name is this machine itself. */
export function isLoopback(host: string): boolean {
  return host === 'localhost' || host === '[::1]' || /^127(\.\d{1,3}){3}$/.test(host)
}

function usage(message: string): AgentError {
  return new AgentError(message, exitCodes.usage)
}
