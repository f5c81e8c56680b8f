// A `docker` that asks the test which started it: the engine of rolling.test.ts is in that process.
export interface EngineCall {
  args: string[]
  env: Record<string, string>
  cwd: string
}
export interface EngineAnswer {
  code: number
  out: string
  err: string
}

const call = { args: process.argv.slice(2), env: process.env, cwd: process.cwd() }
const answer = await fetch(process.env['ENGINE_URL'] ?? '', {
  method: 'POST',
  body: JSON.stringify(call),
})
const { code, out, err } = (await answer.json()) as EngineAnswer
process.stdout.write(out)
process.stderr.write(err)
process.exitCode = code
