"""Test suites that others wrote, run against Leveret and against RabbitMQ, and compared.

`catalogue` describes the suites, `fetch` brings them, `brokers` starts what they talk to, `run` runs
one of them, `compare` says what differs, `report` writes it down. What is in `inside/` is loaded into
the suite's own pytest, in an environment of its own, and imports nothing from here.
"""
