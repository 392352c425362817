// The consumer program of @platformatic/kafka, which asks for a new fetch session with each fetch and uses none. It always
// reads as a member of a group.
import { randomUUID } from 'node:crypto'

import {
  COMMIT_INTERVAL_MS,
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

const { Consumer } = require('@platformatic/kafka')

start('@platformatic/kafka', '@platformatic/kafka')

const consumer = new Consumer({
  clientId: clientId('platformatic'),
  bootstrapBrokers: given.bootstrap.split(','),
  groupId: given.group ?? `platformatic-${randomUUID()}`,
  isolationLevel: committed ? 1 : 0,
  maxWaitTime: FETCH_MAX_WAIT_MS,
})
const stream = await consumer.consume({
  topics,
  mode: given.group === undefined ? 'earliest' : 'committed',
  fallbackMode: 'earliest',
  autocommit: given.group === undefined ? false : COMMIT_INTERVAL_MS,
})
stream.on('error', (error) => emit('error', { code: error.code ?? error.name, text: error.message }))
stream.on('data', (message) => {
  const headers = [...message.headers].map(([name, value]) => [name.toString(), hex(value)])
  emitRecord({ ...message, headers })
})
await stopped()
await stream.close()
await consumer.close(true)
end()
