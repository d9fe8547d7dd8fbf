// A client as a program that is asked on its standard input, as drivers/conversation.py says.
import { readFileSync } from 'node:fs'
import { createInterface } from 'node:readline'

export const packed = (data) => (data === null || data === undefined ? null : Buffer.from(data).toString('base64'))
export const unpacked = (text) => (text === null ? null : Buffer.from(text, 'base64'))

// The version of a client that is installed.
export function versionOf (name) {
  return JSON.parse(readFileSync(new URL(`node_modules/${name}/package.json`, import.meta.url))).version
}

// Drives `answer` until it has a value.
export async function until (answer) {
  for (;;) {
    const found = await answer()
    if (found !== undefined) return found
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
}

export async function converse (client) {
  for await (const line of createInterface({ input: process.stdin })) {
    const { do: action, ...given } = JSON.parse(line)
    let answer
    try {
      answer = { ok: (await client[action](given)) ?? null }
    } catch (error) {
      const causes = (error.errors ?? []).map((each) => `${each.message} ${each.apiId ?? ''} ${each.errors ? each.errors.map((e) => e.apiId ?? e.message) : ''}`)
      answer = { error: `${error.name}: ${error.type ?? error.code ?? ''} ${error.message} ${causes.join(' ')}` }
    }
    process.stdout.write(JSON.stringify(answer) + '\n')
  }
  process.exit(0)
}
