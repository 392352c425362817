// The consumer program of kafka-ts, which makes fetch sessions of its own. Keys, values and headers are text to it: what
// is not UTF-8 is shown with U+FFFD, and of headers with one name the last one.
import {
  FETCH_MAX_WAIT_MS,
  clientId,
  committed,
  emit,
  emitRecord,
  end,
  given,
  hex,
  require,
  start,
  stopped,
  topics,
} from './program.js'

const { createKafkaClient, setLogger } = require('kafka-ts')
const BEGINNING = -2n

const quiet = () => {}
setLogger({
  debug: quiet,
  info: quiet,
  warn: (message, metadata) => console.error(message, metadata),
  error: (message, metadata) => emit('error', { code: metadata?.errorCode ?? metadata?.name ?? 'Error', text: message }),
})

start('kafka-ts', 'kafka-ts')

const kafka = createKafkaClient({
  clientId: clientId('kafka-ts'),
  bootstrapServers: given.bootstrap.split(',').map((address) => {
    const [host, port] = address.split(':')
    return { host, port: Number(port) }
  }),
})
const consumer = await kafka.startConsumer({
  topics,
  groupId: given.group,
  fromTimestamp: BEGINNING,
  isolationLevel: committed ? 1 : 0,
  maxWaitMs: FETCH_MAX_WAIT_MS,
  onBatch: (messages) => {
    for (const message of messages) {
      const headers = Object.entries(message.headers).map(([name, value]) => [name, hex(value)])
      emitRecord({ ...message, headers })
    }
  },
})
await stopped()
await consumer.close()
end()
