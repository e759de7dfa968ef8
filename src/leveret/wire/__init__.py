"""Octets to values and back, pure: AMQP 0-9-1, AMQP 1.0, the stream protocol, chunks."""
