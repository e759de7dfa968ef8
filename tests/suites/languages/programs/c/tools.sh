#!/bin/sh
# The command-line tools of librabbitmq. It writes lines of the Test Anything Protocol; what a tool printed is a part of a
# test's name, so that two brokers that show different things differ.
url="--server=127.0.0.1 --port=5672 --username=guest --password=guest"
seen() {
    name=$1
    shift
    printed=$("$@" 2>&1) && status=0 || status=$?
    echo "ok - $name: status $status: $(echo "$printed" | tr '\n#' '  ' | sed 's/amq.gen-[-A-Za-z0-9_]*/amq.gen/')"
}
seen declare amqp-declare-queue $url --queue=c.tools --durable
seen publish amqp-publish $url --routing-key=c.tools --persistent --content-type=text/plain --body=one
seen "publish, with headers" amqp-publish $url --routing-key=c.tools --header="a: b" --reply-to=c.reply --body=two
head -c 3000000 /dev/zero | seen "publish a large message" amqp-publish $url --routing-key=c.tools
seen get amqp-get $url --queue=c.tools
seen consume amqp-consume $url --queue=c.tools --count=1 --prefetch-count=1 cat
seen "consume a large message" amqp-consume $url --queue=c.tools --count=1 wc -c
seen "get of an empty queue" amqp-get $url --queue=c.tools
seen "publish to a missing exchange" amqp-publish $url --exchange=c.missing --routing-key=x --body=x
seen "consume of a missing queue" amqp-consume $url --queue=c.missing --passive --count=1 cat
seen "wrong password" amqp-get --server=127.0.0.1 --port=5672 --username=guest --password=wrong --queue=c.tools
seen "missing vhost" amqp-get $url --vhost=missing --queue=c.tools
seen "exclusive, bound" amqp-consume $url --exchange=amq.topic --routing-key="c.#" --count=0 --declare --exclusive true
seen delete amqp-delete-queue $url --queue=c.tools
seen "delete again" amqp-delete-queue $url --queue=c.tools
