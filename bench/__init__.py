"""What Leveret does in a second, beside RabbitMQ in the same run: `python -m bench --help`.

__main__    the command
rows        what is measured: one class a row, and the order they run in
standby     the rows that need two nodes and the pipeline
contenders  the brokers that are measured, behind one small interface
workers     starts the load generator's processes, together, and reads rates off their samples
load        those processes: a publisher and a consumer on raw sockets
client      as much of an AMQP 0-9-1 client as they need
sink        a stand-in for a broker that does nothing: shows what the load generator can do
report      table, build/bench.json, docs/performance.md
machine     what the numbers were measured on
"""
