"""Other brokers as a recovery reaches them: a blocking client of AMQP 0-9-1."""
