// What the scenarios share. CTL operates the broker: `CTL stop-node`, `CTL start-node`.
const { execFile } = require("node:child_process")
const { promisify } = require("node:util")

const run = promisify(execFile)

exports.URL = process.env.URL || "amqp://guest:guest@127.0.0.1:5672"
exports.ctl = (...args) => run(process.env.CTL, args)
exports.wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

exports.until = async (condition, what, ms = 30000) => {
  const deadline = Date.now() + ms
  while (!(await condition())) {
    if (Date.now() > deadline) throw new Error(`${what}: not within ${ms} ms`)
    await exports.wait(20)
  }
}

// Lines of the Test Anything Protocol. What was seen is the name of a test, so that two brokers that show different things
// differ.
const say = (line) => console.log(line.replaceAll("\n", " "))
const plain = (text) => text.replaceAll("#", " ")

const shown = (_key, value) => {
  if (typeof value === "bigint") return `${value}n`
  if (value && value.type === "Buffer") return Buffer.from(value.data).toString("latin1")
  return value
}

exports.seen = (what, value) => say(`ok - ${plain(`${what}: ${JSON.stringify(value, shown)}`)}`)

// Runs the scenarios in order, each for at most four minutes, and ends the process.
exports.run = async (scenarios) => {
  for (const [name, scenario] of Object.entries(scenarios)) {
    const late = exports.wait(240000).then(() => { throw new Error("it does not end") })
    await Promise.race([scenario(), late]).then(
      () => say(`ok - ${plain(name)}`),
      (error) => say(`not ok - ${plain(name)} # ${error.stack}`),
    )
  }
  process.exit(0)
}
