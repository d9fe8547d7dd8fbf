// @platformatic/kafka as a driver.
import { Admin, Consumer, Producer } from '@platformatic/kafka'
import { converse, packed, unpacked, until, versionOf } from './conversation.mjs'

const base = { clientId: 'platformatic', bootstrapBrokers: [process.argv[2]], retries: 20, retryDelay: 250 }
const producer = new Producer({ ...base, autocreateTopics: true })
const admin = new Admin(base)
const members = {}

const streamed = { autocommit: false, maxWaitTime: 200, sessionTimeout: 10000, heartbeatInterval: 300, rebalanceTimeout: 10000 }

await converse({
  version: async () => versionOf('@platformatic/kafka'),
  async produce ({ topic, codec, records, partition = 0 }) {
    const messages = records.map(([key, value, timestamp, named]) => ({
      topic,
      partition,
      key: unpacked(key) ?? undefined,
      value: unpacked(value) ?? undefined,
      timestamp: BigInt(timestamp),
      headers: new Map(named.map(([name, text]) => [Buffer.from(name), unpacked(text)]))
    }))
    const { offsets } = await producer.send({ messages, acks: -1, compression: codec === 'none' ? undefined : codec })
    return records.map((_, number) => Number(offsets[0].offset) + number)
  },

  async transact ({ id, topic, turns }) {
    const own = new Producer({ ...base, idempotent: true, transactionalId: id })
    for (const { values, commit } of turns) {
      const transaction = await own.beginTransaction()
      const messages = values.map((value) => ({ topic, partition: 0, value: Buffer.from(value) }))
      await transaction.send({ messages, acks: -1 })
      await (commit ? transaction.commit() : transaction.abort())
    }
    await own.close()
  },

  async read ({ topic, offset, count, partition = 0 }) {
    const consumer = new Consumer({ ...base, groupId: `read-${Math.random()}` })
    const found = []
    const stream = await consumer.consume({
      ...streamed, topics: [topic], mode: 'manual', offsets: [{ topic, partition, offset: BigInt(offset) }]
    })
    stream.on('data', (each) => {
      const headers = [...each.headers].map(([name, text]) => [name.toString(), packed(text)])
      found.push([packed(each.key), packed(each.value), Number(each.timestamp), headers])
    })
    await until(() => (found.length >= count ? true : undefined))
    await consumer.close(true)
    return found.slice(0, count)
  },

  async join ({ member, group, topic }) {
    const consumer = new Consumer({ ...base, groupId: group })
    const taken = []
    const stream = await consumer.consume({ ...streamed, topics: [topic], mode: 'committed', fallbackMode: 'earliest' })
    stream.on('data', (each) => taken.push([each.partition, Number(each.offset), packed(each.value)]))
    stream.on('error', () => {})
    members[member] = { consumer, taken }
  },
  assigned: ({ member }) => (members[member].consumer.assignments ?? []).flatMap((each) => each.partitions),
  take: ({ member, count }) =>
    until(() => (members[member].taken.length >= count ? members[member].taken.splice(0, count) : undefined)),
  commit: ({ member, topic, offset }) =>
    members[member].consumer.commit({ offsets: [{ topic, partition: 0, offset: BigInt(offset), leaderEpoch: 0 }] }),
  async committed ({ member, topic }) {
    const found = await members[member].consumer.listCommittedOffsets({ topics: [{ topic, partitions: [0] }] })
    return Number(found.get(topic)[0])
  },
  async leave ({ member }) {
    await members[member].consumer.close(true)
    delete members[member]
  },
  async time ({ topic, timestamp }) {
    const consumer = new Consumer({ ...base, groupId: `time-${Math.random()}` })
    const found = await consumer.listOffsets({ topics: [topic], partitions: { [topic]: [0] }, timestamp: BigInt(timestamp) })
    await consumer.close(true)
    return Number(found.get(topic)[0])
  },

  async create ({ topic, partitions, config }) {
    const configs = Object.entries(config).map(([name, value]) => ({ name, value }))
    await admin.createTopics({ topics: [topic], partitions, replicas: 1, configs })
  },
  delete: ({ topic }) => admin.deleteTopics({ topics: [topic] }),
  topics: () => admin.listTopics(),
  async groups () {
    return [...(await admin.listGroups({ types: ['classic'] })).keys()]
  },
  async config ({ topic }) {
    const [found] = await admin.describeConfigs({ resources: [{ resourceType: 2, resourceName: topic }] })
    return Object.fromEntries(found.configs.map((each) => [each.name, each.value]))
  }
})
