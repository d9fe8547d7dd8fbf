// kafkajs as a driver.
import kafkajs from 'kafkajs'
import snappy from 'kafkajs-snappy'
import { converse, packed, unpacked, until, versionOf } from './conversation.mjs'

const { Kafka, CompressionCodecs, CompressionTypes, ConfigResourceTypes, logLevel } = kafkajs
CompressionCodecs[CompressionTypes.Snappy] = snappy
const CODECS = { none: 0, gzip: 1, snappy: 2 }
const retry = { retries: 20, initialRetryTime: 100, maxRetryTime: 500 }
const kafka = new Kafka({ clientId: 'kafkajs', brokers: [process.argv[2]], logLevel: logLevel.NOTHING, retry })
const members = {}
const producer = kafka.producer({ retry })
const admin = kafka.admin()
await producer.connect()
await admin.connect()

async function consumer (groupId, topic, each) {
  const made = kafka.consumer({ groupId, sessionTimeout: 10000, heartbeatInterval: 300, maxWaitTimeInMs: 200, retry })
  const member = { consumer: made, assigned: [], taken: [] }
  made.on(made.events.GROUP_JOIN, (event) => { member.assigned = event.payload.memberAssignment[topic] ?? [] })
  await made.connect()
  await made.subscribe({ topics: [topic], fromBeginning: true })
  await made.run({ autoCommit: false, eachMessage: async (message) => each(member, message) })
  return member
}

const rowOf = ({ message }) => {
  const headers = Object.entries(message.headers ?? {})
    .flatMap(([name, found]) => [found].flat().map((value) => [name, packed(value)]))
  return [packed(message.key), packed(message.value), Number(message.timestamp), headers]
}

await converse({
  version: async () => versionOf('kafkajs'),
  async produce ({ topic, codec, records, partition = 0 }) {
    const messages = records.map(([key, value, timestamp, named]) => {
      const headers = {}
      for (const [name, text] of named) headers[name] = [...(headers[name] ?? []), unpacked(text)]
      return { key: unpacked(key), value: unpacked(value), timestamp: String(timestamp), headers, partition }
    })
    const [answer] = await producer.send({ topic, messages, compression: CODECS[codec], acks: -1 })
    return records.map((_, number) => Number(answer.baseOffset) + number)
  },

  async transact ({ id, topic, group, turns }) {
    const own = kafka.producer({ transactionalId: id, idempotent: true, maxInFlightRequests: 1, retry })
    await own.connect()
    for (const { values, offset, commit } of turns) {
      const transaction = await own.transaction()
      await transaction.send({ topic, messages: values.map((value) => ({ value, partition: 0 })) })
      const partitions = [{ partition: 0, offset: String(offset) }]
      await transaction.sendOffsets({ consumerGroupId: group, topics: [{ topic, partitions }] })
      await (commit ? transaction.commit() : transaction.abort())
    }
    await own.disconnect()
  },

  async read ({ topic, offset, count, partition = 0 }) {
    const found = new Map()
    const member = await consumer(`read-${Math.random()}`, topic, (_, each) => {
      const at = Number(each.message.offset)
      if (each.partition === partition && at >= offset) found.set(at, rowOf(each))
    })
    member.consumer.seek({ topic, partition, offset: String(offset) })
    await until(() => (found.size >= count ? true : undefined))
    await member.consumer.disconnect()
    return [...found.keys()].sort((a, b) => a - b).slice(0, count).map((at) => found.get(at))
  },

  async join ({ member, group, topic }) {
    members[member] = await consumer(group, topic, ({ taken }, { partition, message }) => {
      taken.push([partition, Number(message.offset), packed(message.value)])
    })
  },
  assigned: ({ member }) => until(() => members[member].assigned),
  take: ({ member, count }) =>
    until(() => (members[member].taken.length >= count ? members[member].taken.splice(0, count) : undefined)),
  async seek ({ member, topic, offset }) {
    members[member].consumer.seek({ topic, partition: 0, offset: String(offset) })
    await until(() => {
      const at = members[member].taken.findIndex((each, n) => each[1] === offset && n > 0)
      return at < 0 ? undefined : members[member].taken.splice(0, at)
    })
    return null
  },
  commit: ({ member, topic, offset }) =>
    members[member].consumer.commitOffsets([{ topic, partition: 0, offset: String(offset), metadata: 'note' }]),
  async committed ({ group, topic }) {
    const [{ partitions }] = await admin.fetchOffsets({ groupId: group, topics: [topic] })
    return Number(partitions.find((each) => each.partition === 0).offset)
  },
  async leave ({ member }) {
    await members[member].consumer.disconnect()
    delete members[member]
  },
  async time ({ topic, timestamp }) {
    const found = await admin.fetchTopicOffsetsByTimestamp(topic, timestamp)
    return Number(found.find((each) => each.partition === 0).offset)
  },

  async create ({ topic, partitions, config }) {
    const configEntries = Object.entries(config).map(([name, value]) => ({ name, value }))
    const isNew = await admin.createTopics({ topics: [{ topic, numPartitions: partitions, configEntries }] })
    if (!isNew) throw new Error('the topic exists')
  },
  delete: ({ topic }) => admin.deleteTopics({ topics: [topic] }),
  topics: () => admin.listTopics(),
  async groups () {
    return (await admin.listGroups()).groups.map((each) => each.groupId)
  },
  async config ({ topic }) {
    const { resources } = await admin.describeConfigs({
      includeSynonyms: false, resources: [{ type: ConfigResourceTypes.TOPIC, name: topic }]
    })
    return Object.fromEntries(resources[0].configEntries.map((each) => [each.configName, each.configValue]))
  }
})
