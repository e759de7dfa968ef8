<?php
// An application's use of php-amqplib, with books. It writes lines of the Test Anything Protocol; what it saw is a part of
// a test's name, so that two brokers that show different things differ.
require_once 'PhpAmqpLib/autoload.php';

use PhpAmqpLib\Connection\AMQPStreamConnection;
use PhpAmqpLib\Message\AMQPMessage;
use PhpAmqpLib\Wire\AMQPTable;

function test(string $name, callable $run): void
{
    try {
        $run();
        echo "ok - $name\n";
    } catch (Throwable $error) {
        echo "not ok - $name # ", get_class($error), ' ', str_replace("\n", ' ', $error->getMessage()), ' ', $error->getLine(), "\n";
    }
}

function seen(string $what, $value): void
{
    echo "ok - $what: ", str_replace('#', ' ', json_encode($value, JSON_PARTIAL_OUTPUT_ON_ERROR)), "\n";
}

function that(bool $holds, string $what): void
{
    if (!$holds) {
        throw new RuntimeException($what);
    }
}

function ctl(string $command): void
{
    exec(escapeshellarg(getenv('CTL')) . " $command", $output, $status);
    that($status === 0, $command . implode(' ', $output));
}

function connection(string $password = 'guest', string $vhost = '/'): AMQPStreamConnection
{
    return new AMQPStreamConnection('127.0.0.1', 5672, 'guest', $password, $vhost, false, 'AMQPLAIN', null, 'en_US', 10, 10, null, true, 5);
}

function declared(AMQPStreamConnection $connection, string $name, array $arguments = [])
{
    $channel = $connection->channel();
    $channel->queue_delete($name);
    $channel->queue_declare($name, false, true, false, false, false, new AMQPTable($arguments));
    $channel->confirm_select();
    return $channel;
}

function get($channel, string $queue): AMQPMessage
{
    for ($tries = 0; $tries < 2000; $tries++) {
        $message = $channel->basic_get($queue, true);
        if ($message !== null) {
            return $message;
        }
        usleep(5000);
    }
    throw new RuntimeException("no message in $queue");
}

test('workers with a prefetch of 1', function () {
    $connection = connection();
    $channel = declared($connection, 'php.work');
    $nacks = 0;
    $channel->set_nack_handler(function () use (&$nacks) { $nacks++; });
    for ($number = 0; $number < 100; $number++) {
        $channel->basic_publish(new AMQPMessage("$number", ['delivery_mode' => 2]), '', 'php.work');
    }
    $channel->wait_for_pending_acks(10);
    $handled = [];
    $worker = $connection->channel();
    $worker->basic_qos(0, 1, false);
    $worker->basic_consume('php.work', '', false, false, false, false, function ($message) use (&$handled) {
        $handled[$message->body] = ($handled[$message->body] ?? 0) + 1;
        if ($message->body === '7' && !$message->isRedelivered()) {
            $message->nack(true);
            $handled['7'] = 0;
        } else {
            $message->ack();
        }
    });
    while (count($handled) < 100 || $handled['7'] === 0) {
        $worker->wait(null, false, 10);
    }
    that($nacks === 0 && array_unique(array_values($handled)) === [1], json_encode($handled));
    $connection->close();
});

test('topics, returns, rpc, dead letters', function () {
    $connection = connection();
    $channel = declared($connection, 'php.topic');
    $channel->exchange_declare('php.topics', 'topic', false, false, true);
    $channel->queue_bind('php.topic', 'php.topics', '*.jfk.#');
    $returned = [];
    $channel->set_return_listener(function ($code, $text, $exchange, $key, $message) use (&$returned) {
        $returned[] = [$code, $text, $exchange, $key, $message->body];
    });
    foreach (['on.jfk', 'on.jfk.ua', 'jfk'] as $key) {
        $channel->basic_publish(new AMQPMessage($key), 'php.topics', $key, true);
    }
    $channel->wait_for_pending_acks_returns(10);
    seen('returned', $returned);
    seen('routed', [get($channel, 'php.topic')->getRoutingKey(), get($channel, 'php.topic')->getRoutingKey()]);
    $answers = [];
    $channel->basic_consume('amq.rabbitmq.reply-to', '', false, true, false, false, function ($message) use (&$answers) {
        $answers[] = [$message->get('correlation_id'), $message->body];
    });
    $channel->basic_publish(new AMQPMessage('?', ['reply_to' => 'amq.rabbitmq.reply-to', 'correlation_id' => '7']), '', 'php.topic');
    $asked = get($channel, 'php.topic');
    $channel->basic_publish(new AMQPMessage('!', ['correlation_id' => '7']), '', $asked->get('reply_to'));
    while (!$answers) {
        $channel->wait(null, false, 10);
    }
    seen('answer', $answers);
    $dead = declared($connection, 'php.dead');
    $ttl = declared($connection, 'php.ttl', ['x-message-ttl' => 50, 'x-dead-letter-exchange' => '', 'x-dead-letter-routing-key' => 'php.dead']);
    $ttl->basic_publish(new AMQPMessage('old', ['application_headers' => new AMQPTable(['a' => 1])]), '', 'php.ttl');
    $headers = get($dead, 'php.dead')->get('application_headers')->getNativeData();
    that(abs(time() - $headers['x-death'][0]['time']->getTimestamp()) < 60, 'the time of death');
    unset($headers['x-death'][0]['time']);
    ksort($headers);
    seen('dead letter', $headers);
    $connection->close();
});

test('headers of every type, and a large message', function () {
    $connection = connection();
    $channel = declared($connection, 'php.headers');
    $headers = new AMQPTable([
        'text' => 'Zürich', 'yes' => true, 'nothing' => null, 'int' => -7, 'wide' => 1 << 60, 'half' => 0.5, 'list' => [1, 'two', [3]],
        'table' => ['deep' => ['deeper' => true]], 'when' => new DateTime('@1700000000'),
    ]);
    $headers->set('short', -300, AMQPTable::T_INT_SHORT);
    $headers->set('octet', -8, AMQPTable::T_INT_SHORTSHORT);
    $properties = ['application_headers' => $headers, 'content_type' => 'a/b', 'content_encoding' => 'c', 'delivery_mode' => 2, 'priority' => 9,
        'correlation_id' => 'd', 'reply_to' => 'e', 'expiration' => '60000', 'message_id' => 'f', 'timestamp' => 1700000000, 'type' => 'g',
        'user_id' => 'guest', 'app_id' => 'h'];
    $channel->basic_publish(new AMQPMessage('x', $properties), '', 'php.headers');
    $back = get($channel, 'php.headers')->get_properties();
    $types = [];
    foreach ($back['application_headers'] as $key => [$type, $value]) {
        $types[$key] = $type;
    }
    ksort($types);
    seen('types', $types);
    $native = $back['application_headers']->getNativeData();
    ksort($native);
    seen('headers', $native);
    unset($back['application_headers']);
    ksort($back);
    seen('properties', $back);
    $body = str_repeat('x', 15 << 20);
    $channel->basic_publish(new AMQPMessage($body), '', 'php.headers');
    that(get($channel, 'php.headers')->body === $body, 'another body');
    $connection->close();
});

test('what errors say', function () {
    $connection = connection();
    declared($connection, 'php.errors');
    $acts = [
        'missing queue' => fn ($channel) => $channel->queue_declare('php.missing', true),
        'other arguments' => fn ($channel) => $channel->queue_declare('php.errors', false, false, false, false),
        'missing exchange' => function ($channel) {
            $channel->basic_publish(new AMQPMessage('x'), 'php.missing', '');
            $channel->wait(null, false, 5);
        },
        'unknown tag' => function ($channel) {
            $channel->basic_ack(99);
            $channel->wait(null, false, 5);
        },
    ];
    foreach ($acts as $what => $act) {
        try {
            $act($connection->channel());
            that(false, "$what has no error");
        } catch (PhpAmqpLib\Exception\AMQPExceptionInterface $error) {
            seen($what, [get_class($error), $error->getCode(), $error->getMessage()]);
        }
    }
    $connection->close();
    foreach ([['no', '/'], ['guest', 'missing']] as $login) {
        try {
            connection(...$login)->close();
            that(false, 'let in');
        } catch (PhpAmqpLib\Exception\AMQPExceptionInterface $error) {
            seen(implode(' ', $login), [get_class($error), $error->getCode(), $error->getMessage()]);
        }
    }
});

test('a restart of the node', function () {
    $connection = connection();
    $channel = declared($connection, 'php.restart');
    $confirmed = [];
    $channel->set_ack_handler(function ($message) use (&$confirmed) { $confirmed[] = $message->body; });
    for ($number = 0; $number < 100; $number++) {
        $channel->basic_publish(new AMQPMessage("a$number", ['delivery_mode' => 2]), '', 'php.restart');
    }
    $channel->wait_for_pending_acks(10);
    ctl('stop-node');
    try {
        $channel->basic_publish(new AMQPMessage('lost'), '', 'php.restart');
        $channel->wait_for_pending_acks(2);
        that(false, 'a stopped node confirms');
    } catch (PhpAmqpLib\Exception\AMQPExceptionInterface $error) {
        seen('the end', get_class($error));
    }
    ctl('start-node');
    $connection = connection();
    $channel = $connection->channel();
    $found = [];
    while (($message = $channel->basic_get('php.restart', true)) !== null) {
        $found[] = $message->body;
    }
    that(count($confirmed) === 100 && array_diff($confirmed, $found) === [], 'lost: ' . json_encode(array_diff($confirmed, $found)));
    $connection->close();
});
