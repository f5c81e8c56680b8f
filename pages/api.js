// The hub's API as a page needs it: signed in, with an access token that is renewed when it has expired. Tokens
// are kept in memory and are gone with the page.

export class Api {
  #accessToken = ''
  #refreshToken = ''
  #refreshing

  /** Throws with a message for people. */
  async signIn(email, password) {
    this.#keep(await this.#send('POST', '/auth/login', { email, password }))
  }

  /** Asks as who is signed in. Throws with `status` and a message; without `status` when the hub can't be reached. */
  async ask(method, path, body) {
    try {
      return await this.#send(method, path, body)
    } catch (error) {
      if (error.status !== 401 || this.#refreshToken === '') throw error
      // Of several that fail together one renews: the second would use an old token.
      this.#refreshing ??= this.#refresh().finally(() => (this.#refreshing = undefined))
      await this.#refreshing
      return this.#send(method, path, body)
    }
  }

  async #refresh() {
    const refreshToken = this.#refreshToken
    this.#accessToken = ''
    this.#keep(await this.#send('POST', '/auth/refresh', { refreshToken }))
  }

  #keep({ accessToken, refreshToken }) {
    this.#accessToken = accessToken
    this.#refreshToken = refreshToken
  }

  async #send(method, path, body) {
    const headers = {}
    if (body) headers['Content-Type'] = 'application/json'
    if (this.#accessToken) headers.Authorization = `Bearer ${this.#accessToken}`
    const answer = await fetch(`/api/v1${path}`, {
      method,
      headers,
      body: body ? JSON.stringify(body) : undefined,
    }).catch(() => {
      throw new Error('The hub can’t be reached; try again.')
    })
    const content = await answer.json()
    if (answer.ok) return content
    const { message } = content.error
    const error = new Error(`${message.charAt(0).toUpperCase()}${message.slice(1)}.`)
    throw Object.assign(error, { status: answer.status })
  }
}
