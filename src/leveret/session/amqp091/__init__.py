"""An AMQP 0-9-1 server's session: connection, channels, publishing, delivery."""
