# An application's use of bunny, with books. It writes lines of the Test Anything Protocol; what it saw is a part of a
# test's name, so that two brokers that show different things differ.
require "bunny"
require "set"

$stdout.sync = true
QUIET = Logger.new(File::NULL)

def test(name)
  yield
  puts "ok - #{name}"
rescue Exception => error
  puts "not ok - #{name} # #{error.class} #{error.message} #{error.backtrace.first}".tr("\n", " ")
end

def seen(what, value)
  puts "ok - #{what}: #{value.inspect.tr('#', ' ')}"
end

def that(holds, what)
  raise what unless holds
end

def wait_until(what, seconds = 30)
  deadline = Time.now + seconds
  sleep 0.01 until (found = yield) || Time.now > deadline
  found or raise "#{what}: not within #{seconds} s"
end

def ctl(command)
  that(system(ENV.fetch("CTL"), command), command)
end

def connected(options = {})
  connection = Bunny.new({ host: "127.0.0.1", logger: QUIET, heartbeat: 1, network_recovery_interval: 0.3 }.merge(options))
  connection.start
  return connection unless block_given?
  begin
    yield connection
  ensure
    connection.close
  end
end

def declared(channel, name, arguments = {})
  channel.queue_delete(name)
  channel.confirm_select
  channel.queue(name, durable: true, arguments: arguments)
end

def get(queue)
  wait_until("a message in #{queue.name}") { (found = queue.pop).first && found }
end

test("workers with a prefetch of 1") do
  connected do |connection|
    channel = connection.create_channel
    queue = declared(channel, "ruby.work")
    100.times { |number| queue.publish(number.to_s, persistent: true) }
    that(channel.wait_for_confirms, "nacks")
    handled = Hash.new(0)
    lost, second = connection.create_channel, connection.create_channel
    [lost, second].each { |each| each.prefetch(1) }
    taken = nil
    lost.queue("ruby.work", durable: true).subscribe(manual_ack: true) { |_, _, body| taken = body }
    wait_until("one message") { taken }
    marked = false
    second.queue("ruby.work", durable: true).subscribe(manual_ack: true) do |delivery, _, body|
      marked ||= body == taken && delivery.redelivered?
      handled[body] += 1
      second.ack(delivery.delivery_tag)
    end
    wait_until("the others") { handled.size == 99 }
    lost.close
    wait_until("all") { handled.size == 100 }
    that(handled.values.all?(1), "twice: #{handled}")
    that(marked, "what was lost came without the mark")
  end
end

test("topics, returns, rpc, dead letters") do
  connected do |connection|
    channel = connection.create_channel
    queue = declared(channel, "ruby.topic")
    topics = channel.topic("ruby.topics")
    queue.bind(topics, routing_key: "*.jfk.#")
    returned = Queue.new
    topics.on_return { |info, _, body| returned << [info.reply_code, info.reply_text, info.routing_key, body] }
    %w[on.jfk on.jfk.ua jfk].each { |key| topics.publish(key, routing_key: key, mandatory: true) }
    channel.wait_for_confirms
    seen("routed", [get(queue), get(queue)].map { |info, _, _| info.routing_key })
    seen("returned", returned.pop)
    answers = Queue.new
    channel.basic_consume("amq.rabbitmq.reply-to", "", true) { |_, properties, body| answers << [properties.correlation_id, body] }
    queue.publish("?", reply_to: "amq.rabbitmq.reply-to", correlation_id: "7")
    _, asked, _ = get(queue)
    channel.default_exchange.publish("!", routing_key: asked.reply_to, correlation_id: asked.correlation_id)
    seen("answer", answers.pop)
    dead = declared(channel, "ruby.dead")
    ttl = declared(channel, "ruby.ttl", "x-message-ttl" => 50, "x-dead-letter-exchange" => "", "x-dead-letter-routing-key" => "ruby.dead")
    ttl.publish("old", headers: { "a" => 1 }, expiration: "90000")
    _, properties, _ = get(dead)
    that((Time.now - properties.headers["x-death"][0].delete("time")).abs < 60, "the time of death")
    seen("dead letter", properties.headers.sort)
  end
end

test("headers of every type, and a large message") do
  connected do |connection|
    channel = connection.create_channel
    queue = declared(channel, "ruby.headers")
    headers = { "text" => "Zürich", "yes" => true, "no" => false, "nothing" => nil, "int" => -7, "wide" => 1 << 60, "half" => 0.5,
                "when" => Time.at(1_700_000_000), "list" => [1, "two", [3], { "four" => 4 }], "table" => { "deep" => { "deeper" => [true] } } }
    queue.publish("x", headers: headers, content_type: "a/b", content_encoding: "c", priority: 9, correlation_id: "d", reply_to: "e",
                       expiration: "60000", message_id: "f", timestamp: 1_700_000_000, type: "g", user_id: "guest", app_id: "h", persistent: true)
    _, back, _ = get(queue)
    seen("headers", back.headers.sort)
    seen("properties", back.to_hash.reject { |key, _| key == :headers }.sort_by { |key, _| key.to_s })
    body = "x" * (15 << 20)
    queue.publish(body)
    that(get(queue).last == body, "another body")
  end
end

test("what errors say") do
  connected do |connection|
    declared(connection.create_channel, "ruby.errors")
    {
      "missing queue" => ->(channel) { channel.queue("ruby.missing", passive: true) },
      "other arguments" => ->(channel) { channel.queue("ruby.errors", durable: false) },
      "wrong type of an argument" => ->(channel) { channel.queue("ruby.other", durable: true, arguments: { "x-max-length" => "many" }) },
      "missing exchange" => ->(channel) { channel.queue("ruby.errors", durable: true).bind("ruby.missing") },
      "reserved name" => ->(channel) { channel.queue("amq.mine") },
    }.each do |what, act|
      begin
        act.call(connection.create_channel)
        that(false, "#{what} has no error")
      rescue Bunny::Exception => error
        seen(what, [error.class.name, error.message])
      end
    end
    channel = connection.create_channel
    told = Queue.new
    channel.on_error { |_, close| told << [close.reply_code, close.reply_text] }
    channel.ack(99)
    seen("unknown tag", told.pop)
    other = connection.create_channel
    queue = declared(other, "ruby.cancelled")
    consumer = Bunny::Consumer.new(other, queue, "tag")
    consumer.on_cancellation { |notice| told << notice.consumer_tag }
    queue.subscribe_with(consumer)
    connection.create_channel.queue_delete("ruby.cancelled")
    seen("cancelled", told.pop)
  end
  [{ password: "no" }, { vhost: "missing" }].each do |options|
    begin
      connected(options.merge(automatically_recover: false)) { that(false, "let in") }
    rescue Bunny::Exception => error
      seen(options.to_s, [error.class.name, error.message])
    end
  end
end

test("an idle connection with heartbeats of a second") do
  connected do |connection|
    sleep 3.5
    that(connection.open?, "it was lost")
    connection.create_channel.close
  end
end

test("automatic recovery behind a restart of the node") do
  connected(recovery_attempts: 200) do |connection|
    channel = connection.create_channel
    queue = declared(channel, "ruby.restart")
    consumed = Set.new
    reader = connection.create_channel
    reader.prefetch(10)
    reader.queue("ruby.restart", durable: true).subscribe(manual_ack: true) do |delivery, _, body|
      consumed << body
      reader.ack(delivery.delivery_tag)
    end
    confirmed = []
    200.times do |number|
      if number == 100
        ctl("stop-node")
        ctl("start-node")
        wait_until("the recovery", 60) { connection.open? && channel.open? }
        sleep 1
      end
      queue.publish(number.to_s, persistent: true)
      confirmed << number.to_s if channel.wait_for_confirms
    end
    wait_until("all confirmed messages") { confirmed.all? { |each| consumed.include?(each) } }
    that(confirmed.size == 200, "confirmed #{confirmed.size}")
  end
end
