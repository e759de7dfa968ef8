"""Objects of the node in RabbitMQ's JSON."""
