// An application's use of amqplib, with books.
const assert = require("node:assert")
const amqplib = require("amqplib")
const { ctl, run, seen, until, URL, wait } = require("./support")

let connection

const scenarios = {}

scenarios["a connection"] = async () => {
  connection = await amqplib.connect(URL, { clientProperties: { connection_name: "amqplib" } })
}

async function queue(name, options = {}) {
  const channel = await connection.createConfirmChannel()
  await channel.deleteQueue(name)
  await channel.assertQueue(name, { durable: true, ...options })
  return channel
}

async function published(channel, name, count, options = {}) {
  for (let number = 0; number < count; number++) channel.sendToQueue(name, Buffer.from(`${number}`), options)
  await channel.waitForConfirms()
}

scenarios["workers with a prefetch of 1 share a queue; what a lost worker had comes again, marked"] = async () => {
  const channel = await queue("js.work")
  await published(channel, "js.work", 200, { persistent: true })
  const books = new Map()
  const flags = new Map()
  const worker = async (loses) => {
    const own = await connection.createChannel()
    await own.prefetch(1)
    let handled = 0
    await own.consume("js.work", async (message) => {
      const body = message.content.toString()
      flags.set(body, [...(flags.get(body) || []), message.fields.redelivered])
      if (loses && ++handled === 5) return own.close()
      await wait(1)
      books.set(body, (books.get(body) || 0) + 1)
      own.ack(message)
    })
    return own
  }
  const workers = [await worker(false), await worker(true), await worker(false)]
  await until(() => books.size === 200, "every message is handled")
  assert.deepStrictEqual([...books.values()].filter((times) => times !== 1), [])
  const again = [...flags.values()].filter((each) => each.length > 1)
  seen("deliveries of what was lost", again)
  await workers[0].close()
  await workers[2].close()
}

scenarios["a full queue nacks, and confirms come for all"] = async () => {
  const channel = await queue("js.full", { maxLength: 5, overflow: "reject-publish" })
  const outcomes = await Promise.all(
    Array.from({ length: 8 }, (_, number) =>
      new Promise((resolve) => channel.sendToQueue("js.full", Buffer.from(`${number}`), {}, (error) => resolve(error ? "nack" : "ack"))),
    ),
  )
  assert.strictEqual(outcomes.filter((each) => each === "ack").length, 5)
  seen("outcomes", outcomes.sort())
}

scenarios["rpc by direct reply-to"] = async () => {
  const channel = await queue("js.rpc")
  await channel.consume("js.rpc", (request) => {
    channel.publish("", request.properties.replyTo, Buffer.from(`re: ${request.content}`), {
      correlationId: request.properties.correlationId,
    })
    channel.ack(request)
  })
  const asker = await connection.createChannel()
  const answers = []
  await asker.consume("amq.rabbitmq.reply-to", (answer) => answers.push([answer.properties.correlationId, answer.content.toString(), answer.fields.routingKey.startsWith("amq.rabbitmq.reply-to"), answer.fields.exchange]), { noAck: true })
  for (let number = 0; number < 50; number++)
    asker.sendToQueue("js.rpc", Buffer.from(`${number}`), { replyTo: "amq.rabbitmq.reply-to", correlationId: `c${number}` })
  await until(() => answers.length === 50, "fifty answers")
  seen("answers", answers.slice(0, 3))
  for (const [id, body] of answers) assert.strictEqual(body, `re: ${id.slice(1)}`)
}

scenarios["topics, and messages that nothing takes"] = async () => {
  const channel = await queue("js.topic")
  await channel.assertExchange("js.topics", "topic")
  for (const key of ["*.jfk.#", "late.#", "#.ua"]) await channel.bindQueue("js.topic", "js.topics", key)
  const returned = []
  channel.on("return", (message) => returned.push([message.fields.replyCode, message.fields.replyText, message.fields.exchange, message.fields.routingKey, message.content.toString(), message.properties.headers]))
  const keys = ["on.jfk", "on.jfk.ua.1", "late", "late.ewr", "on.ewr", "x.y.z.ua", "jfk.on", ""]
  for (const key of keys) channel.publish("js.topics", key, Buffer.from(key), { mandatory: true, headers: { key } })
  await channel.waitForConfirms()
  const got = []
  for (let message; (message = await channel.get("js.topic", { noAck: true })); ) got.push(message.fields.routingKey)
  seen("routed", got)
  seen("returned", returned)
}

scenarios["dead letters of a time to live, of rejects and of a length"] = async () => {
  const channel = await queue("js.dead")
  await channel.assertExchange("js.dlx", "fanout")
  await channel.bindQueue("js.dead", "js.dlx", "")
  const to = { deadLetterExchange: "js.dlx" }
  const own = await queue("js.ttl", { ...to, messageTtl: 50 })
  await queue("js.each", to)
  await queue("js.reject", { ...to, deadLetterRoutingKey: "other" })
  await queue("js.length", { ...to, maxLength: 2 })
  own.sendToQueue("js.ttl", Buffer.from("old"), { headers: { a: 1 } })
  own.sendToQueue("js.each", Buffer.from("each"), { expiration: "60" })
  for (const number of [1, 2, 3]) own.sendToQueue("js.length", Buffer.from(`l${number}`))
  own.sendToQueue("js.reject", Buffer.from("no"), { CC: ["js.cc"] })
  await own.waitForConfirms()
  own.nack(await own.get("js.reject"), false, false)
  await until(async () => (await channel.checkQueue("js.dead")).messageCount === 4, "four dead letters")
  const found = []
  for (let message; (message = await channel.get("js.dead", { noAck: true })); ) {
    const { time: _time, ...death } = message.properties.headers["x-death"][0]
    const others = Object.keys(message.properties.headers).filter((key) => key !== "x-death").sort()
    found.push([message.content.toString(), message.fields.routingKey, message.properties.expiration, death, others])
  }
  seen("dead letters", found.sort())
}

scenarios["headers of every type"] = async () => {
  const channel = await queue("js.headers")
  const typed = (type, value) => ({ "!": type, value })
  const headers = {
    text: "Zürich ✈", empty: "", yes: true, no: false, nothing: null, small: 7, negative: -1, wide: 2147483648, far: -2147483649,
    half: 1.5, list: [1, "two", [3, null], { four: 4 }], table: { deep: { deeper: [true] } }, octets: Buffer.from([0, 255, 128]),
    when: typed("timestamp", 1700000000), money: typed("decimal", { digits: 1999, places: 2 }), int8: typed("int8", -8), uint8: typed("uint8", 200),
    int16: typed("int16", -300), uint16: typed("uint16", 60000), int32: typed("int32", -70000), uint32: typed("uint32", 4000000000),
    int64: typed("int64", 9007199254740991), float: typed("float", 0.25), double: typed("double", 1e300),
  }
  channel.sendToQueue("js.headers", Buffer.from("x"), {
    headers, contentType: "text/plain", contentEncoding: "utf-8", priority: 3, correlationId: "c", replyTo: "r", expiration: "60000",
    messageId: "m", timestamp: 1700000000, type: "t", userId: "guest", appId: "a", persistent: true,
  })
  await channel.waitForConfirms()
  const message = await channel.get("js.headers", { noAck: true })
  seen("properties", message.properties)
}

scenarios["messages of many megabytes"] = async () => {
  const channel = await queue("js.large")
  const body = Buffer.alloc(20 * 1024 * 1024, "0123456789abcdef")
  channel.sendToQueue("js.large", body, { persistent: true })
  await channel.waitForConfirms()
  const message = await channel.get("js.large", { noAck: true })
  assert.ok(body.equals(message.content))
}

scenarios["heartbeats of a second keep an idle connection"] = async () => {
  const idle = await amqplib.connect(`${URL}?heartbeat=1`)
  let lost = null
  idle.on("error", (error) => { lost = error })
  await wait(3500)
  assert.strictEqual(lost, null)
  await (await idle.createChannel()).close()
  await idle.close()
}

scenarios["what errors say, and that the connection lives on"] = async () => {
  const refused = async (what, act) => {
    const channel = await connection.createConfirmChannel()
    const closed = new Promise((resolve) => channel.once("error", resolve))
    const outcome = Promise.resolve(act(channel)).catch(() => {})
    const error = await Promise.race([closed, wait(5000)])
    await outcome
    seen(what, [error?.code, error?.message])
  }
  await queue("js.errors")
  await refused("missing queue", (channel) => channel.checkQueue("js.missing"))
  await refused("missing exchange", (channel) => channel.publish("js.missing", "", Buffer.from("x")))
  await refused("other arguments", (channel) => channel.assertQueue("js.errors", { durable: false }))
  await refused("reserved name", (channel) => channel.assertQueue("amq.mine"))
  await refused("unknown delivery tag", (channel) => channel.ack({ fields: { deliveryTag: 99 } }))
  await refused("user id of another", (channel) => channel.sendToQueue("js.errors", Buffer.from("x"), { userId: "other" }))
  await refused("expiration that is no number", (channel) => channel.sendToQueue("js.errors", Buffer.from("x"), { expiration: "soon" }))
  await refused("consumer tag in use", async (channel) => {
    await channel.consume("js.errors", () => {}, { consumerTag: "one" })
    await channel.consume("js.errors", () => {}, { consumerTag: "one" })
  })
  await refused("exclusive consumer", async (channel) => {
    await channel.consume("js.errors", () => {}, { exclusive: true })
    const other = await connection.createChannel()
    other.once("error", (error) => channel.emit("error", error))
    await other.consume("js.errors", () => {})
  })
  await refused("internal exchange", async (channel) => {
    await channel.assertExchange("js.internal", "fanout", { internal: true })
    channel.publish("js.internal", "", Buffer.from("x"))
  })
  await refused("default exchange bound", (channel) => channel.bindQueue("js.errors", "", "x"))
  await refused("transaction after confirms", (channel) => channel.assertQueue("js.errors", { arguments: { "x-message-ttl": "soon" } }))
  await (await connection.createChannel()).close()
}

scenarios["connections are refused with a reason"] = async () => {
  for (const url of ["amqp://guest:wrong@127.0.0.1:5672", "amqp://guest:guest@127.0.0.1:5672/missing", `${URL}?frameMax=1000`, `${URL}?channelMax=70000`]) {
    const error = await amqplib.connect(url).then((one) => one.close(), (reason) => reason)
    seen(url, error?.message)
  }
}

scenarios["a consumer is told that its queue was deleted"] = async () => {
  const channel = await queue("js.cancelled")
  const told = new Promise((resolve) => channel.consume("js.cancelled", resolve))
  await wait(50)
  await (await connection.createChannel()).deleteQueue("js.cancelled")
  seen("message", await told)
}

scenarios["a stream is read again from any offset"] = async () => {
  const channel = await queue("js.stream", { arguments: { "x-queue-type": "stream" } })
  await published(channel, "js.stream", 50)
  const from = async (offset) => {
    const reader = await connection.createChannel()
    await reader.prefetch(100)
    const read = []
    await reader.consume("js.stream", (message) => { read.push([message.content.toString(), message.properties.headers["x-stream-offset"]]); reader.ack(message) }, { arguments: { "x-stream-offset": offset } })
    await until(() => read.length && read.at(-1)[0] === "49", "the end")
    await reader.close()
    return read
  }
  seen("first", (await from("first")).slice(0, 2))
  seen("40", (await from(40)).slice(0, 2))
  await channel.deleteQueue("js.stream")
}

scenarios["single active consumer, priorities of messages and of consumers"] = async () => {
  const channel = await queue("js.single", { arguments: { "x-single-active-consumer": true } })
  const seenBy = []
  const first = await channel.consume("js.single", (message) => { seenBy.push("first"); channel.ack(message) })
  await channel.consume("js.single", (message) => { seenBy.push("second"); channel.ack(message) })
  await published(channel, "js.single", 3)
  await until(() => seenBy.length === 3, "three")
  await channel.cancel(first.consumerTag)
  await published(channel, "js.single", 2)
  await until(() => seenBy.length === 5, "five")
  seen("active", seenBy)
  const urgent = await queue("js.urgent", { maxPriority: 5 })
  for (const priority of [1, 5, 3, 5, 0]) urgent.sendToQueue("js.urgent", Buffer.from(`${priority}`), { priority })
  await urgent.waitForConfirms()
  const order = []
  for (let message; (message = await urgent.get("js.urgent", { noAck: true })); ) order.push(message.content.toString())
  seen("by priority", order)
}

scenarios["recovery goes on behind a restart of the node, and no confirmed message is lost"] = async () => {
  const setup = await queue("js.restart")
  await setup.close()
  let channel = null
  const own = await amqplib.connect(URL, {
    recovery: {
      initialDelay: 100, maxDelay: 500,
      async setup(model) {
        channel = await model.createConfirmChannel()
        channel.on("error", () => {})
      },
    },
  })
  own.on("error", () => {})
  connection.on("error", () => {})
  const confirmed = new Set()
  let stopped = false
  const publisher = (async () => {
    for (let number = 0; !stopped; number++) {
      try {
        await new Promise((resolve, reject) => {
          const timer = setTimeout(() => reject(new Error("no confirm")), 2000)
          channel.sendToQueue("js.restart", Buffer.from(`${number}`), { persistent: true }, (error) => {
            clearTimeout(timer)
            if (error) reject(error)
            else resolve(confirmed.add(`${number}`))
          })
        })
      } catch {
        await wait(50)
      }
    }
  })()
  await until(() => confirmed.size > 100, "a hundred confirms")
  await ctl("stop-node")
  const before_ = confirmed.size
  await ctl("start-node")
  await until(() => confirmed.size > before_ + 100, "a hundred more behind the restart", 60000)
  stopped = true
  await publisher
  connection = await amqplib.connect(URL)
  const reader = await connection.createChannel()
  const found = new Set()
  for (let message; (message = await reader.get("js.restart", { noAck: true })); ) found.add(message.content.toString())
  assert.deepStrictEqual([...confirmed].filter((each) => !found.has(each)), [])
  await own.close()
}

run(scenarios)
