"""RabbitMQ's HTTP API on a Leveret node: for RabbitMQ's own tools, for `leveretctl`, for Prometheus."""
