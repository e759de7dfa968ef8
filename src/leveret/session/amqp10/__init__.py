"""AMQP 1.0: one connection, as a server and as a client."""
