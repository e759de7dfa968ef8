"""What Leveret does in a second, beside RabbitMQ in the same run: `python -m bench --help`.

__main__    the command
rows        what is measured on one queue, and what a row is
many        the row of a hundred queues and twenty connections
streams     the rows of the stream protocol
backlog     the rows of a long queue
queues      the rows of ten thousand queues
standby     the rows that need two nodes and the pipeline
followers   the rows of a leader and a follower
contenders  the brokers that are measured, behind one small interface
workers     starts the load generator's processes, together, and reads rates off their samples
process     what those processes have in common
load        a publisher and a consumer on raw sockets
traffic     messages that differ, and where in their octets everything stands
traffic_load  publishers and consumers of such messages, who check each of them
mixed       the rows of such messages, and of other loads that are checked as they are
round_trips  what one client waits for
lavinmq     a LavinMQ node, where there is one
plot        the plot of a run
failover    the row of a leader that dies where etcd elects
mirrors     the rows of a cluster of three nodes
pacer       a publisher at a steady rate that notes when confirms came
client      as much of an AMQP 0-9-1 client as they need
sink        a stand-in for a broker that does nothing: shows what the load generator can do
report      table, build/bench.json, docs/performance.md
machine     what the numbers were measured on
"""
