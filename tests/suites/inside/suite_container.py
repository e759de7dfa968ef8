"""Inside aiormq's pytest: the fixtures of the conftest.py that is in its repository and not in its sdist.

SUITE_AMQP_PORT and SUITE_AMQPS_PORT say where the broker listens that its tests take for a container.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import pytest
from yarl import URL


@dataclass(frozen=True)
class Container:
    """A broker, by the ports that it would have in a container of its own."""

    host: str = "127.0.0.1"
    ports: dict[str, int] = field(
        default_factory=lambda: {
            "5672/tcp": int(os.environ["SUITE_AMQP_PORT"]),
            "5671/tcp": int(os.environ["SUITE_AMQPS_PORT"]),
        }
    )


@pytest.fixture(scope="session")
def rabbitmq_container() -> Container:
    """The broker under test."""
    return Container()


@pytest.fixture(scope="session")
def amqp_direct_url(rabbitmq_container: Container) -> URL:
    """Where guest connects to the vhost `/`."""
    port = rabbitmq_container.ports["5672/tcp"]
    return URL.build(
        scheme="amqp", user="guest", password="guest", path="//", host=rabbitmq_container.host, port=port
    )
