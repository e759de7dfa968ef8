"""Leveret: a message broker that RabbitMQ's clients already speak to, whose data is never on one machine only."""

__version__ = "0.1.0"
