// An application's use of @cloudamqp/amqp-client: sessions that recover, rpc, and the low-level client.
import assert from "node:assert"
import { createRequire } from "node:module"
import { AMQPClient, AMQPSession } from "@cloudamqp/amqp-client"

const { ctl, run, seen, until, URL } = createRequire(import.meta.url)("./support")
let client

const scenarios = {}

scenarios["a connection"] = async () => {
  client = await new AMQPClient(URL).connect()
}

scenarios["confirms, consumers, and errors of channels"] = async () => {
  const channel = await client.channel()
  await channel.confirmSelect()
  const { name } = await channel.queueDeclare("ca.work")
  await channel.queuePurge(name)
  const tags = await Promise.all(Array.from({ length: 100 }, (_, number) => channel.basicPublish("", name, `${number}`, { deliveryMode: 2 })))
  assert.strictEqual(new Set(tags).size, 100)
  await channel.basicQos(7)
  const bodies = []
  const consumer = await channel.basicConsume(name, { noAck: false }, async (message) => {
    bodies.push(message.bodyString())
    await message.ack()
  })
  await until(() => bodies.length === 100, "a hundred messages")
  await consumer.cancel()
  seen("order", bodies.slice(0, 5))
  for (const [what, act] of [
    ["missing queue", (one) => one.queueDeclare("ca.missing", { passive: true })],
    ["other arguments", (one) => one.queueDeclare("ca.work", { durable: false })],
    ["missing exchange", (one) => one.queueBind("ca.work", "ca.missing", "")],
    ["reserved name", (one) => one.exchangeDeclare("amq.mine", "direct")],
  ]) {
    const error = await client.channel().then(act).catch((reason) => reason)
    seen(what, error.message)
  }
}

scenarios["headers of every type, returns, and a large message"] = async () => {
  const channel = await client.channel()
  await channel.confirmSelect()
  await channel.queueDeclare("ca.headers")
  await channel.queuePurge("ca.headers")
  const headers = { text: "ü", yes: true, nothing: null, int: -5, wide: 2 ** 40, half: 0.5, list: [1, "b"], table: { b: { c: 1 } }, when: new Date(1700000000000) }
  await channel.basicPublish("", "ca.headers", "x", { headers, timestamp: new Date(1700000000000), priority: 9, expiration: "60000", userId: "guest", type: "t" })
  const { properties } = await channel.basicGet("ca.headers", { noAck: true })
  seen("properties", properties)
  const returned = new Promise((resolve) => { channel.onReturn = resolve })
  await channel.basicPublish("", "ca.nowhere", "x", {}, true)
  const message = await returned
  seen("returned", [message.replyCode, message.replyText, message.routingKey])
  const body = new Uint8Array(9 * 1024 * 1024).fill(65)
  await channel.basicPublish("", "ca.headers", body)
  assert.strictEqual((await channel.basicGet("ca.headers", { noAck: true })).bodySize, body.length)
}

scenarios["a session recovers its consumers and rpc behind a restart of the node"] = async () => {
  const session = await AMQPSession.connect(URL, { reconnectInterval: 100, maxReconnectInterval: 500 })
  await client.channel().then((one) => one.queueDelete("ca.restart"))
  const queue = await session.queue("ca.restart", { durable: true })
  const consumed = new Set()
  await queue.subscribe({ prefetch: 10 }, (message) => { consumed.add(message.bodyString()) })
  await session.rpcServer("ca.rpc", (message) => `re: ${message.bodyString()}`)
  assert.strictEqual((await session.rpcCall("ca.rpc", "a", { timeout: 5000 })).bodyString(), "re: a")
  const confirmed = new Set()
  let stopped = false
  const publishing = (async () => {
    for (let number = 0; !stopped; number++) {
      const sent = await queue.publish(`${number}`, { deliveryMode: 2 }).then(() => true, () => false)
      if (sent) confirmed.add(`${number}`)
      else await new Promise((resolve) => setTimeout(resolve, 50))
    }
  })()
  await until(() => confirmed.size > 100, "a hundred confirms")
  client.onerror = () => {}
  await ctl("stop-node")
  await ctl("start-node")
  const now = confirmed.size
  await until(() => confirmed.size > now + 100, "a hundred more", 60000)
  stopped = true
  await publishing
  await until(() => [...confirmed].every((each) => consumed.has(each)), "all confirmed messages are consumed")
  let answer
  await until(async () => (answer = await session.rpcCall("ca.rpc", "b", { timeout: 2000 }).catch(() => null)), "an answer")
  assert.strictEqual(answer.bodyString(), "re: b")
  await session.stop()
  client = await new AMQPClient(URL).connect()
}

run(scenarios)
