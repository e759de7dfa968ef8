"""Stories of mirrored queues, written once and played on RabbitMQ's cluster and on Leveret's.

Each module holds the cases of one of RabbitMQ's test suites (v3.13.7, the last version with mirrors), by their
names; a case acts on a `Stage`, which notes what was seen. Two clusters that are alike leave the same transcript.

stage                   what a case may do, and the transcript
clients                 a publisher and a consumer that work while nodes go
simple_ha, ...          the cases
"""
