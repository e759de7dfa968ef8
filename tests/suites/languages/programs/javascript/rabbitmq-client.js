// An application's use of rabbitmq-client: its publisher, consumer and rpc client, over a restart of the node.
const assert = require("node:assert")
const { Connection, ConsumerStatus } = require("rabbitmq-client")
const { ctl, run, seen, until, URL } = require("./support")

let rabbit

const scenarios = {}

scenarios["a connection"] = async () => {
  rabbit = new Connection({ url: URL, retryLow: 100, retryHigh: 500, connectionName: "rabbitmq-client" })
  rabbit.on("error", () => {})
  await rabbit.onConnect()
}

scenarios["a consumer drops, requeues and acks; dead letters arrive"] = async () => {
  await rabbit.queueDelete("rc.work").catch(() => {})
  await rabbit.queueDelete("rc.dead").catch(() => {})
  await rabbit.queueDeclare({ queue: "rc.dead" })
  const handled = []
  const consumer = rabbit.createConsumer(
    {
      queue: "rc.work", concurrency: 1, qos: { prefetchCount: 1 },
      queueOptions: { durable: true, arguments: { "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "rc.dead" } },
    },
    async (message) => {
      handled.push([message.body.number, message.redelivered])
      if (message.body.number === 2) return ConsumerStatus.DROP
      if (message.body.number === 3 && !message.redelivered) return ConsumerStatus.REQUEUE
    },
  )
  consumer.on("error", () => {})
  const publisher = rabbit.createPublisher({ confirm: true, maxAttempts: 3 })
  for (let number = 0; number < 5; number++) await publisher.send("rc.work", { number })
  await until(() => handled.length === 6, "six deliveries")
  seen("deliveries", handled.sort())
  let dead
  await until(async () => (dead = await rabbit.basicGet({ queue: "rc.dead", noAck: true })), "a dead letter")
  seen("dead letter", [dead.body, dead.headers["x-first-death-reason"], dead.headers["x-death"][0].count])
  await consumer.close()
  await publisher.close()
}

scenarios["rpc, mandatory returns, and errors of channels"] = async () => {
  const server = rabbit.createConsumer({ queue: "rc.rpc", queueOptions: { durable: true } }, async (request, reply) => reply({ twice: request.body * 2 }))
  await new Promise((resolve) => server.on("ready", resolve))
  const client = rabbit.createRPCClient({ confirm: true })
  assert.deepStrictEqual((await client.send("rc.rpc", 21)).body, { twice: 42 })
  await client.close()
  await server.close()
  const publisher = rabbit.createPublisher({ confirm: true })
  const returned = new Promise((resolve) => publisher.on("basic.return", resolve))
  await publisher.send({ routingKey: "rc.nowhere", mandatory: true }, "x")
  const message = await returned
  seen("returned", [message.replyCode, message.replyText, message.routingKey])
  await publisher.close()
  for (const [what, act] of [
    ["missing queue", () => rabbit.queueDeclare({ queue: "rc.missing", passive: true })],
    ["other arguments", () => rabbit.queueDeclare({ queue: "rc.rpc", durable: false })],
    ["missing exchange", () => rabbit.queueBind({ queue: "rc.rpc", exchange: "rc.missing", routingKey: "" })],
  ]) {
    const error = await act().catch((reason) => reason)
    seen(what, [error.code, error.message])
  }
}

scenarios["headers of every type"] = async () => {
  await rabbit.queueDelete("rc.headers").catch(() => {})
  await rabbit.queueDeclare({ queue: "rc.headers", durable: true })
  const publisher = rabbit.createPublisher({ confirm: true })
  const headers = { text: "ü", yes: true, nothing: null, int: -5, wide: 2 ** 40, half: 0.5, list: [1, [2], { a: null }], table: { b: { c: 1 } }, when: new Date(1700000000000), octets: Buffer.from([1, 2, 255]) }
  await publisher.send({ routingKey: "rc.headers", headers, timestamp: 1700000000, priority: 9, expiration: "60000" }, "x")
  const { headers: back, ...others } = await rabbit.basicGet({ queue: "rc.headers", noAck: true })
  seen("headers", back)
  seen("others", [others.timestamp, others.priority, others.expiration, others.contentType, others.body])
  await publisher.close()
}

scenarios["publisher and consumer go on behind a restart of the node; every confirmed message is consumed"] = async () => {
  await rabbit.queueDelete("rc.restart").catch(() => {})
  const consumed = new Set()
  const consumer = rabbit.createConsumer({ queue: "rc.restart", queueOptions: { durable: true }, qos: { prefetchCount: 10 } }, async (message) => { consumed.add(message.body) })
  consumer.on("error", () => {})
  await new Promise((resolve) => consumer.on("ready", resolve))
  const publisher = rabbit.createPublisher({ confirm: true, maxAttempts: 5 })
  publisher.on("retry", () => {})
  const confirmed = new Set()
  let stopped = false
  const publishing = (async () => {
    for (let number = 0; !stopped; number++)
      await publisher.send({ routingKey: "rc.restart", durable: true }, number).then(() => confirmed.add(number), () => {})
  })()
  await until(() => confirmed.size > 100, "a hundred confirms")
  await ctl("stop-node")
  await ctl("start-node")
  const now = confirmed.size
  await until(() => confirmed.size > now + 100, "a hundred more", 60000)
  stopped = true
  await publishing
  await until(() => [...confirmed].every((each) => consumed.has(each)), "all confirmed messages are consumed")
  await consumer.close()
  await publisher.close()
}

run(scenarios)
