"""Rules that definitions have to meet, in RabbitMQ's words."""
