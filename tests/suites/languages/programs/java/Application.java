import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.AlreadyClosedException;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.GetResponse;
import com.rabbitmq.client.LongString;
import com.rabbitmq.client.MessageProperties;
import com.rabbitmq.client.Recoverable;
import com.rabbitmq.client.RecoveryListener;
import com.rabbitmq.client.RpcClient;
import com.rabbitmq.client.ShutdownSignalException;
import com.rabbitmq.client.DefaultConsumer;
import com.rabbitmq.client.Envelope;
import java.io.IOException;
import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Date;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/**
 * An application's use of RabbitMQ's Java client, with books. It writes lines of the Test Anything Protocol; what it saw
 * is a part of a test's name, so that two brokers that show different things differ.
 */
public final class Application {
    interface Scenario {
        void run() throws Exception;
    }

    interface Act {
        void on(Channel channel) throws Exception;
    }

    static final ConnectionFactory FACTORY = new ConnectionFactory();

    static void test(String name, Scenario scenario) {
        try {
            scenario.run();
            System.out.println("ok - " + name);
        } catch (Throwable error) {
            error.printStackTrace();
            System.out.println("not ok - " + name + " # " + String.valueOf(error).replaceAll("\\s+", " "));
        }
    }

    static void seen(String what, Object value) {
        System.out.println("ok - " + what + ": " + text(value).replaceAll("\\s+", " ").replace('#', ' '));
    }

    static String text(Object value) {
        if (value instanceof Map) {
            Map<String, String> sorted = new TreeMap<>();
            ((Map<?, ?>) value).forEach((key, each) -> sorted.put(String.valueOf(key), text(each)));
            return sorted.toString();
        }
        if (value instanceof List) {
            List<String> texts = new ArrayList<>();
            ((List<?>) value).forEach(each -> texts.add(text(each)));
            return texts.toString();
        }
        if (value instanceof byte[]) {
            return Arrays.toString((byte[]) value);
        }
        return value instanceof LongString || value == null ? "'" + value + "'" : value.getClass().getSimpleName() + " " + value;
    }

    static void that(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    static void ctl(String command) throws Exception {
        that(new ProcessBuilder(System.getenv("CTL"), command).inheritIO().start().waitFor() == 0, command);
    }

    static Channel declared(Connection connection, String name, Map<String, Object> arguments) throws Exception {
        Channel channel = connection.createChannel();
        channel.confirmSelect();
        channel.queueDelete(name);
        channel.queueDeclare(name, true, false, false, arguments);
        return channel;
    }

    static GetResponse get(Channel channel, String queue) throws Exception {
        for (int tries = 0; tries < 2000; tries++) {
            GetResponse found = channel.basicGet(queue, true);
            if (found != null) {
                return found;
            }
            Thread.sleep(5);
        }
        throw new AssertionError("no message in " + queue);
    }

    static void send(Channel channel, String queue, AMQP.BasicProperties properties, byte[] body) throws Exception {
        channel.basicPublish("", queue, properties, body);
        channel.waitForConfirmsOrDie(10_000);
    }

    static void work() throws Exception {
        try (Connection connection = FACTORY.newConnection("java")) {
            Channel channel = declared(connection, "java.work", null);
            for (int number = 0; number < 200; number++) {
                channel.basicPublish("", "java.work", MessageProperties.PERSISTENT_TEXT_PLAIN, ("" + number).getBytes());
            }
            channel.waitForConfirmsOrDie(10_000);
            Map<String, Integer> handled = new ConcurrentHashMap<>();
            CountDownLatch all = new CountDownLatch(200);
            for (int number = 0; number < 3; number++) {
                boolean loses = number == 1;
                Channel worker = connection.createChannel();
                worker.basicQos(1);
                worker.basicConsume("java.work", false, new DefaultConsumer(worker) {
                    int taken;

                    @Override
                    public void handleDelivery(String tag, Envelope envelope, AMQP.BasicProperties properties, byte[] body) throws IOException {
                        if (loses && ++taken == 5) {
                            try {
                                worker.close();
                            } catch (Exception ignored) {
                                return;
                            }
                            return;
                        }
                        handled.merge(new String(body), 1, Integer::sum);
                        worker.basicAck(envelope.getDeliveryTag(), false);
                        all.countDown();
                    }
                });
            }
            that(all.await(30, TimeUnit.SECONDS), "handled " + handled.size());
            that(handled.values().stream().allMatch(times -> times == 1), "twice: " + handled);
        }
    }

    static void routing() throws Exception {
        try (Connection connection = FACTORY.newConnection("java")) {
            Channel channel = declared(connection, "java.topic", null);
            channel.exchangeDeclare("java.topics", "topic");
            channel.queueBind("java.topic", "java.topics", "*.jfk.#");
            BlockingQueue<String> returned = new LinkedBlockingQueue<>();
            channel.addReturnListener((code, reason, exchange, key, properties, body) -> returned.add(code + " " + reason + " " + exchange + " " + key + " " + new String(body)));
            for (String key : new String[] {"on.jfk", "on.jfk.ua", "jfk"}) {
                channel.basicPublish("java.topics", key, true, null, key.getBytes());
            }
            channel.waitForConfirmsOrDie(10_000);
            seen("returned", returned.poll(10, TimeUnit.SECONDS));
            seen("routed", get(channel, "java.topic").getEnvelope().getRoutingKey() + " " + get(channel, "java.topic").getEnvelope().getRoutingKey());
            Channel server = declared(connection, "java.rpc", null);
            server.basicConsume("java.rpc", true, new DefaultConsumer(server) {
                @Override
                public void handleDelivery(String tag, Envelope envelope, AMQP.BasicProperties asked, byte[] body) throws IOException {
                    server.basicPublish("", asked.getReplyTo(), new AMQP.BasicProperties.Builder().correlationId(asked.getCorrelationId()).build(), ("re: " + new String(body)).getBytes());
                }
            });
            RpcClient client = new RpcClient(connection.createChannel(), "", "java.rpc", 10_000);
            seen("answer", client.stringCall("x"));
            client.close();
        }
    }

    static void deadLetters() throws Exception {
        try (Connection connection = FACTORY.newConnection("java")) {
            Channel channel = declared(connection, "java.dead", null);
            Map<String, Object> arguments = new LinkedHashMap<>();
            arguments.put("x-message-ttl", 50);
            arguments.put("x-dead-letter-exchange", "");
            arguments.put("x-dead-letter-routing-key", "java.dead");
            declared(connection, "java.ttl", arguments);
            send(channel, "java.ttl", new AMQP.BasicProperties.Builder().expiration("90000").headers(Collections.singletonMap("a", 1)).build(), "old".getBytes());
            Map<String, Object> headers = get(channel, "java.dead").getProps().getHeaders();
            Object time = ((Map<?, ?>) ((List<?>) headers.get("x-death")).get(0)).remove("time");
            that(Math.abs(System.currentTimeMillis() - ((Date) time).getTime()) < 60_000, "time " + time);
            seen("dead letter", headers);
        }
    }

    static void headers() throws Exception {
        try (Connection connection = FACTORY.newConnection("java")) {
            Channel channel = declared(connection, "java.headers", null);
            Map<String, Object> sent = new LinkedHashMap<>();
            sent.put("text", "Zürich");
            sent.put("yes", true);
            sent.put("nothing", null);
            sent.put("byte", (byte) -8);
            sent.put("short", (short) -300);
            sent.put("int", -70000);
            sent.put("long", 1L << 60);
            sent.put("float", 0.25f);
            sent.put("double", 1e300);
            sent.put("decimal", new BigDecimal("19.99"));
            sent.put("date", new Date(1_700_000_000_000L));
            sent.put("bytes", new byte[] {0, -1, -128});
            sent.put("list", Arrays.asList(1, "two", null, Arrays.asList(true)));
            sent.put("table", Collections.singletonMap("deep", Collections.singletonMap("deeper", 1L)));
            AMQP.BasicProperties properties = new AMQP.BasicProperties("a/b", "c", sent, 2, 9, "d", "e", "60000", "f", new Date(1_700_000_000_000L), "g", "guest", "h", null);
            send(channel, "java.headers", properties, "x".getBytes());
            GetResponse back = get(channel, "java.headers");
            seen("headers", back.getProps().getHeaders());
            seen("properties", back.getProps().builder().headers(null).build());
            byte[] large = new byte[15 << 20];
            Arrays.fill(large, (byte) 7);
            send(channel, "java.headers", null, large);
            that(Arrays.equals(large, get(channel, "java.headers").getBody()), "another body");
        }
    }

    static void failures() throws Exception {
        try (Connection connection = FACTORY.newConnection("java")) {
            declared(connection, "java.errors", null);
            Map<String, Act> acts = new LinkedHashMap<>();
            acts.put("missing queue", channel -> channel.queueDeclarePassive("java.missing"));
            acts.put("other arguments", channel -> channel.queueDeclare("java.errors", false, false, false, null));
            acts.put("wrong type of an argument", channel -> channel.queueDeclare("java.other", true, false, false, Collections.singletonMap("x-max-length", "many")));
            acts.put("missing exchange", channel -> channel.basicPublish("java.missing", "", null, new byte[0]));
            acts.put("unknown tag", channel -> channel.basicAck(77, false));
            acts.put("predeclared exchange", channel -> channel.exchangeDelete("amq.topic"));
            acts.put("transaction and confirms", channel -> {
                channel.txSelect();
                channel.confirmSelect();
            });
            for (Map.Entry<String, Act> each : acts.entrySet()) {
                Channel channel = connection.createChannel();
                CountDownLatch closed = new CountDownLatch(1);
                ShutdownSignalException[] why = new ShutdownSignalException[1];
                channel.addShutdownListener(cause -> {
                    why[0] = cause;
                    closed.countDown();
                });
                try {
                    each.getValue().on(channel);
                } catch (IOException | AlreadyClosedException expected) {
                    // told to the listener as well
                }
                that(closed.await(5, TimeUnit.SECONDS), each.getKey() + " has no error");
                seen(each.getKey(), why[0].getReason().toString());
            }
            Channel channel = declared(connection, "java.cancelled", null);
            BlockingQueue<String> told = new LinkedBlockingQueue<>();
            channel.basicConsume("java.cancelled", false, "tag", new DefaultConsumer(channel) {
                @Override
                public void handleCancel(String tag) {
                    told.add(tag);
                }
            });
            connection.createChannel().queueDelete("java.cancelled");
            seen("cancelled", told.poll(10, TimeUnit.SECONDS));
        }
        for (String uri : new String[] {"amqp://guest:no@127.0.0.1:5672/%2F", "amqp://guest:guest@127.0.0.1:5672/missing"}) {
            ConnectionFactory other = new ConnectionFactory();
            other.setUri(uri);
            try {
                other.newConnection().close();
                that(false, uri + " is let in");
            } catch (IOException error) {
                seen(uri, error.getClass().getName() + " " + error.getMessage() + " " + (error.getCause() == null ? "" : error.getCause().getMessage()));
            }
        }
    }

    static void restart() throws Exception {
        FACTORY.setAutomaticRecoveryEnabled(true);
        FACTORY.setTopologyRecoveryEnabled(true);
        FACTORY.setNetworkRecoveryInterval(200);
        try (Connection connection = FACTORY.newConnection("java")) {
            Channel channel = declared(connection, "java.restart", null);
            channel.queueDeclare("java.temporary", false, true, true, null);
            channel.queueBind("java.temporary", "amq.topic", "java.#");
            Set<String> consumed = ConcurrentHashMap.newKeySet();
            Channel reader = connection.createChannel();
            reader.basicQos(10);
            reader.basicConsume("java.restart", false, new DefaultConsumer(reader) {
                @Override
                public void handleDelivery(String tag, Envelope envelope, AMQP.BasicProperties properties, byte[] body) throws IOException {
                    consumed.add(new String(body));
                    reader.basicAck(envelope.getDeliveryTag(), false);
                }
            });
            CountDownLatch recovered = new CountDownLatch(1);
            ((Recoverable) connection).addRecoveryListener(new RecoveryListener() {
                @Override
                public void handleRecovery(Recoverable one) {
                    recovered.countDown();
                }

                @Override
                public void handleRecoveryStarted(Recoverable one) {
                }
            });
            List<String> confirmed = new ArrayList<>();
            for (int number = 0; number < 400; number++) {
                if (number == 200) {
                    ctl("stop-node");
                    ctl("start-node");
                    that(recovered.await(60, TimeUnit.SECONDS), "the connection is not recovered");
                }
                send(channel, "java.restart", MessageProperties.PERSISTENT_TEXT_PLAIN, ("" + number).getBytes());
                confirmed.add("" + number);
            }
            for (int tries = 0; tries < 2000 && !consumed.containsAll(confirmed); tries++) {
                Thread.sleep(5);
            }
            that(consumed.containsAll(confirmed), "consumed " + consumed.size() + " of " + confirmed.size());
            channel.basicPublish("amq.topic", "java.x", null, "y".getBytes());
            that(get(channel, "java.temporary").getEnvelope().getRoutingKey().equals("java.x"), "the exclusive queue and its binding are not recovered");
        }
    }

    public static void main(String[] arguments) throws Exception {
        FACTORY.setUri("amqp://guest:guest@127.0.0.1:5672/%2F");
        FACTORY.setRequestedHeartbeat(1);
        test("workers with a prefetch of 1", Application::work);
        test("topics, returns, rpc", Application::routing);
        test("dead letters", Application::deadLetters);
        test("headers of every type, and a large message", Application::headers);
        test("what errors say", Application::failures);
        test("an idle connection with heartbeats of a second", () -> {
            try (Connection connection = FACTORY.newConnection()) {
                Thread.sleep(3500);
                connection.createChannel().close();
            }
        });
        test("automatic recovery behind a restart of the node", Application::restart);
        System.exit(0);
    }
}
