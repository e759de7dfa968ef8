"""Stories of mirrored queues, written once and played on RabbitMQ's cluster and on Leveret's.

Each module has the cases of one of RabbitMQ's test suites (v3.13.7, the last version with mirrors), by their names; a
case acts on a `Stage`, which notes the observations. Two clusters that behave alike have the same transcript.

stage                   the actions of a case, and the transcript
clients                 a publisher and a consumer that work while nodes end
simple_ha, ...          the cases
"""
