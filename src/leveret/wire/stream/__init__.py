"""The RabbitMQ stream protocol as octets and values: `frames`, `fields`, `commands`. Pure."""
