// The consumer program of KafkaJS, which makes no fetch sessions and always reads as a member of a group.
// Command line and output are told in tests/clients/__init__.py; before them stands the folder of node_modules.
import { createHash, randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { createRequire } from 'node:module'
import { parseArgs } from 'node:util'

const [folder, ...args] = process.argv.slice(2)
const require = createRequire(`${folder}/`)
const { AssignerProtocol, Kafka, PartitionAssigners, logLevel } = require('kafkajs')

const FETCH_MAX_WAIT_MS = 100

const { values: given } = parseArgs({
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

const emit = (kind, fields) => process.stdout.write(JSON.stringify({ kind, ...fields }) + '\n')
const hex = (data) => (data === null || data === undefined ? null : data.toString('hex'))
const digest = (data) =>
  data === null ? null : `${data.length}:${createHash('sha256').update(data).digest('hex')}`

// It gives headers as an object: a name that comes more than once has a list of values.
const headerList = (headers) =>
  Object.entries(headers ?? {}).flatMap(([name, value]) =>
    (Array.isArray(value) ? value : [value]).map((each) => [name, hex(each)]),
  )

const emitRecord = (topic, partition, message) =>
  emit('record', {
    topic,
    partition,
    offset: Number(message.offset),
    timestamp: Number(message.timestamp),
    key: hex(message.key),
    value: digest(message.value),
    headers: headerList(message.headers),
  })

emit('start', { client: 'KafkaJS', version: require('kafkajs/package.json').version })

const kafka = new Kafka({
  clientId: given['client-id'] ?? `kafkajs${given.suffix}`,
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
const sessionMs = Number(given['session-ms'])
const consumer = kafka.consumer({
  sessionTimeout: sessionMs,
  heartbeatInterval: sessionMs / 10,
  partitionAssigners: [given.strategy ? asRange : PartitionAssigners.roundRobin],
  groupId: given.group ?? `kafkajs-${randomUUID()}`,
  maxWaitTimeInMs: FETCH_MAX_WAIT_MS,
  readUncommitted: given.isolation !== 'read_committed',
})

consumer.on(consumer.events.CRASH, ({ payload }) =>
  emit('error', { code: payload.error.name, text: payload.error.message }),
)
await consumer.connect()
const topics = given.subscribe?.split(',') ?? given.assign.split(',').map((item) => item.split(':')[0])
await consumer.subscribe({ topics, fromBeginning: true })
await consumer.run({
  autoCommit: given.group !== undefined,
  autoCommitInterval: 1000,
  eachBatchAutoResolve: true,
  eachBatch: async ({ batch }) => {
    for (const message of batch.messages) emitRecord(batch.topic, batch.partition, message)
  },
})
await once(process.stdin, 'data')
await consumer.disconnect()
emit('end', {})
process.stdin.destroy()
