"""AMQP 0-9-1 as a server speaks it: connection, channels, publishing, delivery."""
