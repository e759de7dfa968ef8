from __future__ import annotations

import socket
import subprocess
import sys
import threading

import pytest

from leveret.testing.network import ports
from leveret.testing.network.ports import (
    LOOPBACK,
    NotReady,
    accepts,
    free_port,
    free_ports,
    speaks_amqp,
    wait_until,
)

pytestmark = pytest.mark.process


def test_free_ports_are_all_different() -> None:
    assert len(set(free_ports(50))) == 50


def test_a_free_port_is_not_given_away_twice_before_it_is_bound() -> None:
    ports = [free_port() for _ in range(500)]
    assert len(set(ports)) == len(ports)


def test_a_port_that_another_process_was_given_is_not_given_until_that_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    giving = "from leveret.testing.network.ports import free_port; print(free_port(), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", giving], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        taken = int(other.stdout.readline())
        one = free_port()
        ports._release(one)
        ports._GIVEN.remove(one)
        chosen = iter([taken, one])
        with monkeypatch.context() as patch:
            patch.setattr(ports._CHOICE, "randrange", lambda *_: next(chosen))
            assert free_port() == one
        other.stdin.close()
        assert other.wait(30) != 0
    chosen = iter([taken])
    monkeypatch.setattr(ports._CHOICE, "randrange", lambda *_: next(chosen))
    assert free_port() == taken


def test_a_free_port_can_be_bound() -> None:
    with socket.socket() as server:
        server.bind((LOOPBACK, free_port()))


def test_a_port_that_nobody_listens_on_accepts_nothing() -> None:
    assert not accepts(free_port())


def test_a_listener_that_does_not_answer_speaks_no_amqp() -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
        assert accepts(port)
        assert not speaks_amqp(port, timeout_s=0.1)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"\x01\x00\x00\x00\x00\x00\x04rest", True),
        (b"AMQP\x00\x00\x09\x01", False),
        (b"", False),
    ],
)
def test_only_a_method_frame_counts_as_speaking_amqp(answer: bytes, expected: bool) -> None:
    with socket.create_server((LOOPBACK, 0)) as server:

        def serve() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(8)
                peer.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            assert speaks_amqp(server.getsockname()[1]) is expected
        finally:
            thread.join()


def test_waiting_ends_as_soon_as_the_wish_holds() -> None:
    answers = iter([False, False, True])
    wait_until(lambda: next(answers), "the third answer", 10.0)
    assert list(answers) == []


def test_waiting_in_vain_says_what_for_and_how_long() -> None:
    with pytest.raises(NotReady, match=r"the moon: not within 0\.05 s"):
        wait_until(lambda: False, "the moon", 0.05)
