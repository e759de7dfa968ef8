"""Clients: the AMQP and stream listeners, and one connection each."""
