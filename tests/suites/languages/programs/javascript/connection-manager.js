// An application's use of amqp-connection-manager: it keeps what it could not publish, and publishes it again.
const assert = require("node:assert")
const amqp = require("amqp-connection-manager")
const { ctl, run, until, URL } = require("./support")

const scenarios = {}

scenarios["what is published while the node is away arrives once it is back; consumers are restored"] = async () => {
  const manager = amqp.connect([URL, "amqp://guest:guest@127.0.0.1:1"], { reconnectTimeInSeconds: 0.2, heartbeatIntervalInSeconds: 2 })
  manager.on("connectFailed", () => {})
  const consumed = new Map()
  const channel = manager.createChannel({
    json: true,
    setup: async (own) => {
      await own.assertQueue("cm.work", { durable: true })
      await own.prefetch(20)
      await own.consume("cm.work", (message) => {
        const number = JSON.parse(message.content.toString()).number
        consumed.set(number, (consumed.get(number) || 0) + 1)
        own.ack(message)
      })
    },
  })
  channel.on("error", () => {})
  await channel.waitForConnect()
  const confirmed = new Set()
  const publish = (number) => channel.sendToQueue("cm.work", { number }, { persistent: true }).then(() => confirmed.add(number), () => {})
  for (let number = 0; number < 200; number++) publish(number)
  await until(() => confirmed.size === 200, "two hundred confirms")
  await ctl("stop-node")
  for (let number = 200; number < 400; number++) publish(number)
  await ctl("start-node")
  for (let number = 400; number < 600; number++) publish(number)
  await until(() => confirmed.size === 600, "six hundred confirms", 60000)
  await until(() => consumed.size === 600, "six hundred messages")
  assert.ok([...consumed.values()].filter((times) => times > 1).length < 60)
  await channel.close()
  await manager.close()
}

run(scenarios)
