"""The suites: where their tests are, how they are pointed at a broker, and what is left out of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from leveret.testing.network.ports import LOOPBACK
from tests.suites.brokers import Certificates, Doors

INSIDE: Final = Path(__file__).parent / "inside"
CLIENTS: Final = Path(__file__).parent / "clients"


def _nothing(_folder: Path, _certificates: Certificates) -> None:
    """Leave the folder as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """One suite; versions and hashes are in the lock, requirements/suites.txt.

    Attributes:
        package: the distribution whose sdist holds the tests; empty when they are ours, in `clients/`,
            because the sdist of the client that the suite is named after has none for a broker.
        tests: what pytest is given, relative to the sdist's folder or to `clients/`.
        environment: every variable that the suite reads to find its broker. Those that name a
            host are all set, to loopback: some suites' defaults are hosts on the internet.
        plugins: modules of `inside/` that the suite's pytest loads besides those for all.
        redirected: the suite can not be told a port, so the usual ones lead to the broker.
        own_certificates: folder with `ca.pem`, `server.pem` and `server.key` which the suite's
            clients expect of the broker.
        prepare: puts into the sdist's folder what the suite needs and the sdist lacks.
        left_out: node ids that are not run, each with the reason.
        timeout_s: the longest that the whole suite may take.
    """

    name: str
    package: str = ""
    tests: tuple[str, ...]
    environment: Callable[[Doors], Mapping[str, str]]
    plugins: tuple[str, ...] = ()
    redirected: bool = False
    own_certificates: str = ""
    prepare: Callable[[Path, Certificates], None] = _nothing
    left_out: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 600.0


def _amqpstorm(listeners: Doors) -> dict[str, str]:
    login = f"{listeners.user}:{listeners.password}@localhost"
    return {
        "AMQP_BROKER": "rabbitmq",
        "AMQP_HOST": LOOPBACK,
        "AMQP_USERNAME": listeners.user,
        "AMQP_PASSWORD": listeners.password,
        "AMQP_URI": f"amqp://{login}:5672/%2F",
        "AMQP_HTTP_URL": f"http://{LOOPBACK}:{listeners.management}",
        "AMQP_SSL_URI": f"amqps://{login}:5671/%2F",
        "AMQP_SSL_HOST": "localhost",
        "AMQP_CAFILE": str(listeners.certificates.ca),
        "AMQP_CERTFILE": str(listeners.certificates.certificate),
        "AMQP_KEYFILE": str(listeners.certificates.key),
    }


def _celery_family(listeners: Doors) -> dict[str, str]:
    return {
        "RABBITMQ_HOST": "localhost",
        "RABBITMQ_5672_TCP": str(listeners.amqp),
        "RABBITMQ_5671_TCP": str(listeners.amqps),
    }


def _py_amqp_certificates(folder: Path, certificates: Certificates) -> None:
    """Write the certificates that are in the repository of py-amqp and not in its sdist."""
    target = folder / "t" / "certs"
    target.mkdir(exist_ok=True)
    shutil.copy(certificates.ca, target / "ca_certificate.pem")
    shutil.copy(certificates.certificate, target / "client_certificate.pem")
    shutil.copy(certificates.key, target / "client_key.pem")
    # A certificate and a key that do not belong together.
    shutil.copy(certificates.ca, target / "client_certificate_broken.pem")
    shutil.copy(certificates.key, target / "client_key_broken.pem")


def _container(listeners: Doors) -> dict[str, str]:
    return {"SUITE_AMQP_PORT": str(listeners.amqp), "SUITE_AMQPS_PORT": str(listeners.amqps)}


def _stream(listeners: Doors) -> dict[str, str]:
    return {"SUITE_STREAM_PORT": str(listeners.stream), "SUITE_AMQP_PORT": str(listeners.amqp)}


PUBLIC_HOST: Final = "connects to a public host"

SUITES: Final[tuple[Suite, ...]] = (
    Suite(
        name="amqpstorm",
        package="amqpstorm",
        tests=("amqpstorm/tests/functional",),
        environment=_amqpstorm,
        redirected=True,
    ),
    Suite(
        name="py-amqp",
        package="amqp",
        tests=("t/integration",),
        environment=_celery_family,
        prepare=_py_amqp_certificates,
        left_out={
            "t/integration/test_rmq.py::test_tls_default_certs": PUBLIC_HOST,
            "t/integration/test_rmq.py::test_tls_no_default_certs_fails": PUBLIC_HOST,
        },
    ),
    Suite(
        name="kombu", package="kombu", tests=("t/integration/test_py_amqp.py",), environment=_celery_family
    ),
    Suite(
        name="aio-pika",
        package="aio-pika",
        tests=("tests",),
        environment=_container,
        plugins=("suite_docker",),
        left_out={
            "tests/test_reconnect_channel_snapshot.py::test_create_channels_during_reconnect": (
                "loses a race in the client one time in three, on RabbitMQ too"
            )
        },
        timeout_s=1500,
    ),
    Suite(
        name="aiormq",
        package="aiormq",
        tests=("tests",),
        environment=_container,
        plugins=("suite_container",),
        own_certificates="tests/certs",
    ),
    Suite(name="rbfly", tests=("rbfly_scenarios.py",), environment=_stream),
    Suite(name="rstream", tests=("rstream_scenarios.py",), environment=_stream),
)
