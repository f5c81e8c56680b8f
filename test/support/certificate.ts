// A certificate that nobody trusts until told to, made by openssl.
import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'

export interface Certificate {
  /** Both as PEM. */
  key: string
  cert: string
}

/** Makes one for a host name, valid for a day; its files stay in `folder`. */
export function makeCertificate(folder: string, name: string): Certificate {
  const [key, cert] = [join(folder, `${name}.key`), join(folder, `${name}.crt`)]
  const subject = ['-subj', `/CN=${name}`, '-addext', `subjectAltName=DNS:${name}`]
  const kind = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-days', '1']
  const files = ['-keyout', key, '-out', cert]
  execFileSync('openssl', ['req', '-x509', ...kind, ...subject, ...files], { stdio: 'ignore' })
  return { key: readFileSync(key, 'utf8'), cert: readFileSync(cert, 'utf8') }
}
