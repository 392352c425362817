// What the JavaScript consumer programs share: the command line, JSON lines out, and when to stop. The form of both is
// told in tests/clients/__init__.py; before the command line stands the folder of node_modules.
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { parseArgs } from 'node:util'

const [folder, ...args] = process.argv.slice(2)

export const require = createRequire(`${folder}/`)
export const FETCH_MAX_WAIT_MS = process.env.CONSUME_USUAL === undefined ? 100 : 500
export const COMMIT_INTERVAL_MS = 1000

export const { values: given } = parseArgs({
  args,
  options: {
    bootstrap: { type: 'string' },
    assign: { type: 'string' },
    subscribe: { type: 'string' },
    group: { type: 'string' },
    isolation: { type: 'string', default: 'read_uncommitted' },
    suffix: { type: 'string', default: '' },
    'client-id': { type: 'string' },
    strategy: { type: 'string', default: '' },
    'session-ms': { type: 'string', default: '30000' },
  },
})
export const sessionMs = Number(given['session-ms'])
export const clientId = (own) => given['client-id'] ?? `${own}${given.suffix}`
export const committed = given.isolation === 'read_committed'
export const topics = given.subscribe?.split(',') ?? given.assign.split(',').map((item) => item.split(':')[0])

export const emit = (kind, fields) => process.stdout.write(JSON.stringify({ kind, ...fields }) + '\n')
export const hex = (data) => (data === null || data === undefined ? null : Buffer.from(data).toString('hex'))

const digest = (data) => {
  if (data === null || data === undefined) return null
  const bytes = Buffer.from(data)
  return `${bytes.length}:${createHash('sha256').update(bytes).digest('hex')}`
}

export const start = (client, name) => {
  const manifest = readFileSync(`${folder}/node_modules/${name}/package.json`)
  emit('start', { client, version: JSON.parse(manifest).version })
}

// `headers` is a list of a name and hex or null.
export const emitRecord = ({ topic, partition, offset, timestamp, key, value, headers }) =>
  emit('record', {
    topic,
    partition,
    offset: Number(offset),
    timestamp: Number(timestamp),
    key: hex(key),
    value: digest(value),
    headers,
  })

export const stopped = () => once(process.stdin, 'data')

export const end = () => {
  emit('end', {})
  process.stdin.destroy()
}
