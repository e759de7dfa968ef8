"""Conversations with faults in them, at every port of a real node, one after the other.

Each ends its own connection at most. The node neither restarts nor grows nor loses a message, has no bug to
tell of in its log, and serves. Which code each fault gets is compared with RabbitMQ's in tests/conformance.
"""

from __future__ import annotations

import base64
import os
import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random, SystemRandom
from typing import Final

import pika
import pytest
from pamqp import commands

from leveret.session.amqp091.replies import NAMES
from leveret.testing.applications.applications import drain
from leveret.testing.applications.mixed_messages import declare, mixed_messages
from leveret.testing.network.ports import LOOPBACK
from leveret.testing.servers.broker import LeveretProcess
from leveret.wire.amqp091 import FRAME_HEAD
from tests.fuzz.codecs import STREAM_COMMANDS
from tests.fuzz.documents import http_seeds
from tests.fuzz.mutations import mutated
from tests.fuzz.sessions import amqp091_talks, amqp10_seeds
from tests.unit.session.amqp091 import fakes

QUEUE: Final = "kept"
COUNT: Final = 20
GROWTH_BYTES_MAX: Final = 96 * 1024 * 1024
PATIENCE_S: Final = 60.0
BYTES_MAX: Final = 16_384
FUZZ_SECONDS: Final = int(os.environ.get("FUZZ_SECONDS", "100"))
SEED: Final = os.environ.get("LEVERET_FUZZ_SEED")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LeveretProcess]:
    with LeveretProcess(parent_dir=tmp_path) as node:
        # Mutated requests may do what their user may do: hence one who may do little.
        node.ctl("add_vhost", "fuzz")
        node.ctl("add_user", "fuzz", "secret")
        node.ctl("set_user_tags", "fuzz", "policymaker")
        node.ctl("set_permissions", "-p", "fuzz", "fuzz", ".*", ".*", ".*")
        with pika.BlockingConnection(pika.ConnectionParameters(LOOPBACK, node.amqp_port)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            declare(channel, [QUEUE])
            for one in mixed_messages([QUEUE], COUNT):
                channel.basic_publish(one.exchange, one.routing_key, one.body, one.properties)
        yield node


def conversations(node: LeveretProcess) -> list[tuple[int, list[bytes]]]:
    """For each door its port and whole, lawful conversations."""
    opened = [*fakes.HANDSHAKE, *(fakes.frame(commands.Channel.Open(), number) for number in (1, 2))]
    amqp = [b"".join([*opened, *talk]) for talk in amqp091_talks()]
    return [
        (node.amqp_port, amqp),
        (node.amqp_port, [seed[1:] for seed in amqp10_seeds()]),
        (node.stream_port, [b"".join(command.encode() for command in STREAM_COMMANDS)]),
        (node.management_port, [_http_request(seed) for seed in http_seeds()]),
    ]


def _http_request(seed: bytes) -> bytes:
    head, _, body = seed.replace(b"%2F", b"fuzz").partition(b"\n\n")
    lines = [
        head.partition(b"\n")[0] + b" HTTP/1.1",
        b"host: node",
        b"authorization: Basic " + base64.b64encode(b"fuzz:secret"),
        b"content-type: application/json",
        b"content-length: %d" % len(body),
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def say(port: int, octets: bytes) -> bytes:
    """Say it all, close our side, and return what is answered until the node closes its own."""
    answer = b""
    with socket.create_connection((LOOPBACK, port), timeout=PATIENCE_S) as peer:
        try:
            peer.sendall(octets)
            peer.shutdown(socket.SHUT_WR)
            while piece := peer.recv(65_536):
                answer += piece
        except (ConnectionResetError, BrokenPipeError):
            pass  # closed before it had read everything
    return answer


def reply_codes(answer: bytes) -> Iterator[int]:
    """Codes of the connection.close and channel.close frames among the frames of an answer."""
    position = 0
    while len(answer) - position > FRAME_HEAD.size and answer[position] in (1, 2, 3, 8):
        _, _, size = FRAME_HEAD.unpack_from(answer, position)
        payload = answer[position + FRAME_HEAD.size :][:size]
        if payload[:4] in (b"\x00\x0a\x00\x32", b"\x00\x14\x00\x28"):
            yield int.from_bytes(payload[4:6], "big")
        position += FRAME_HEAD.size + size + 1


@pytest.mark.parametrize(
    ("rounds", "seed"),
    [(120, 2026), pytest.param(5_000, None, marks=[pytest.mark.fuzz, pytest.mark.timeout(600)])],
)
def test_faulty_conversations_end_nothing_but_their_connections(
    node: LeveretProcess, rounds: int, seed: int | None
) -> None:
    chosen = int(SEED) if SEED else seed or SystemRandom().randrange(1 << 31)
    print(f"LEVERET_FUZZ_SEED={chosen}")
    random, listeners, codes = Random(chosen), conversations(node), Counter[int]()
    pid, began_bytes, deadline = node.pid, node.rss_bytes(), time.monotonic() + max(10.0, FUZZ_SECONDS / 3)
    said = 0
    while said < rounds and time.monotonic() < deadline:
        said += 1
        port, seeds = random.choice(listeners)
        answer = say(port, mutated(random, seeds, BYTES_MAX))
        if port == node.amqp_port:
            codes.update(reply_codes(answer))
    print(f"{said} conversations; AMQP answered with {dict(codes)}")
    assert node.alive
    assert node.pid == pid
    assert "traceback=" not in node.log_text()
    assert node.rss_bytes() - began_bytes < GROWTH_BYTES_MAX
    assert codes.keys() <= NAMES.keys() - {541}, codes
    assert {501, 505} & codes.keys(), codes
    assert len(drain(node.amqp_port, "/", QUEUE, keep=True)) == COUNT
