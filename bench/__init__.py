"""The benchmark of Leveret beside RabbitMQ in the same run: `python -m bench --help`.

The command and the report:

__main__      the command
runner        runs scenarios on each broker in turns
selftest      the limits of the load generator, measured on a sink
report        the table, build/bench.json, docs/performance.md
plot          the plot of a run
machine       the machine of the measurements

The scenarios and their rows:

rows          the rows of one queue; the classes of rows, readings and scenarios
many          a hundred queues and twenty connections
mixed         messages that differ, each of them checked
round_trips   the waits of single clients
beside        latencies beside other work of the node
streams       the stream protocol
backlog       a long queue
queues        ten thousand queues
disk          the disk that remains in use after messages were consumed
schema        schema sync
standby       two nodes and the pipeline
both_sites    confirms that wait for the other site
settled       a promotion with few unsettled messages among many
archives      archives of a standby of any size
archive_looks dry runs and inspections of such archives
archive_queries   the questions of an operator to them
shovel        RabbitMQ's way to a second site, for the rows of standby
followers     a leader and a follower
failover      a leader that dies while etcd elects
mirrors       a cluster of three nodes
console_page  the console's pages

The brokers and the load:

contenders    the measured brokers, behind one small interface
lavinmq       a LavinMQ node
management    requests to their HTTP API
workers       starts the processes of the load generator together, and computes rates from their samples
process       the common part of these processes
load          a publisher and a consumer on raw sockets
traffic       messages that differ, and the places of their parts
traffic_load  publishers of such messages, and consumers that check them
pacer         a publisher at a steady rate that notes the times of confirms
client        the needed part of an AMQP 0-9-1 client
sink          a stand-in for a broker without any work
"""
