// The consumer program of KafkaJS, which makes no fetch sessions and always reads as a member of a group.
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
  sessionMs,
  start,
  stopped,
  topics,
} from './program.js'

const { AssignerProtocol, Kafka, PartitionAssigners, logLevel } = require('kafkajs')

// It gives headers as an object: a name that comes more than once has a list of values.
const headerList = (headers) =>
  Object.entries(headers ?? {}).flatMap(([name, value]) =>
    (Array.isArray(value) ? value : [value]).map((each) => [name, hex(each)]),
  )

start('KafkaJS', 'kafkajs')

const kafka = new Kafka({
  clientId: clientId('kafkajs'),
  brokers: given.bootstrap.split(','),
  logLevel: logLevel.ERROR,
})

// Its assigner by the name of one that other clients have: each takes what the leader assigns.
const asRange = (parts) => ({
  ...PartitionAssigners.roundRobin(parts),
  name: 'range',
  protocol: ({ topics }) => ({
    name: 'range',
    metadata: AssignerProtocol.MemberMetadata.encode({ version: 0, topics, userData: Buffer.alloc(0) }),
  }),
})
const consumer = kafka.consumer({
  sessionTimeout: sessionMs,
  heartbeatInterval: sessionMs / 10,
  partitionAssigners: [given.strategy ? asRange : PartitionAssigners.roundRobin],
  groupId: given.group ?? `kafkajs-${randomUUID()}`,
  maxWaitTimeInMs: FETCH_MAX_WAIT_MS,
  readUncommitted: !committed,
})

consumer.on(consumer.events.CRASH, ({ payload }) =>
  emit('error', { code: payload.error.name, text: payload.error.message }),
)
await consumer.connect()
await consumer.subscribe({ topics, fromBeginning: true })
await consumer.run({
  autoCommit: given.group !== undefined,
  autoCommitInterval: COMMIT_INTERVAL_MS,
  eachBatchAutoResolve: true,
  eachBatch: async ({ batch: { topic, partition, messages } }) => {
    for (const message of messages) {
      emitRecord({ ...message, topic, partition, headers: headerList(message.headers) })
    }
  },
})
await stopped()
await consumer.disconnect()
end()
