"""Other brokers as targets of a recovery: a blocking client of AMQP 0-9-1."""
