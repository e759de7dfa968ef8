// Clients that know three nodes of a cluster, while the leader of their mirrored queue is killed and comes back.
const amqp = require("amqp-connection-manager")
const { Connection } = require("rabbitmq-client")
const { ctl, run, until } = require("./support")

const urls = process.env.URLS.split(" ")

const scenarios = {}

scenarios["mirrors"] = () => ctl("mirror")

async function books(name, publish, consumed) {
  const confirmed = new Set()
  let stopped = false
  const publishing = (async () => {
    for (let number = 0; !stopped; number++) await publish(number).then(() => confirmed.add(number), () => {})
  })()
  for (let round = 0; round < 2; round++) {
    const now = confirmed.size
    await until(() => confirmed.size > now + 200, "two hundred confirms", 60000)
    await ctl("kill-leader", name)
    const then = confirmed.size
    await until(() => confirmed.size > then + 200, "two hundred confirms behind the loss of the leader", 60000)
    await ctl("revive")
  }
  stopped = true
  await publishing
  await until(() => [...confirmed].every((each) => consumed.has(each)), "every confirmed message is consumed", 60000)
}

scenarios["amqp-connection-manager"] = async () => {
  const manager = amqp.connect(urls, { reconnectTimeInSeconds: 0.2, heartbeatIntervalInSeconds: 2 })
  manager.on("connectFailed", () => {})
  const consumed = new Set()
  const channel = manager.createChannel({
    json: true,
    setup: async (own) => {
      await own.assertQueue("fo.manager", { durable: true })
      await own.prefetch(20)
      await own.consume("fo.manager", (message) => {
        if (message === null) return own.close()
        consumed.add(JSON.parse(message.content.toString()))
        own.ack(message)
      })
    },
  })
  channel.on("error", () => {})
  await channel.waitForConnect()
  await books("fo.manager", (number) => channel.sendToQueue("fo.manager", number, { persistent: true, timeout: 20000 }), consumed)
  await manager.close()
}

scenarios["rabbitmq-client"] = async () => {
  const rabbit = new Connection({ hosts: urls.map((url) => new URL(url).host), username: "guest", password: "guest", retryLow: 100, retryHigh: 500 })
  rabbit.on("error", () => {})
  await rabbit.onConnect()
  const consumed = new Set()
  const consumer = rabbit.createConsumer({ queue: "fo.client", queueOptions: { durable: true }, qos: { prefetchCount: 20 } }, async (message) => { consumed.add(message.body) })
  consumer.on("error", () => {})
  await new Promise((resolve) => consumer.on("ready", resolve))
  const publisher = rabbit.createPublisher({ confirm: true, maxAttempts: 3 })
  await books("fo.client", (number) => publisher.send({ routingKey: "fo.client", durable: true }, number), consumed)
  await consumer.close()
  await publisher.close()
  await rabbit.close()
}

run(scenarios)
