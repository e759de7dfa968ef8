"""Against servers that say what no good server says."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.config import load
from leveret.model.errors import (
    AuthenticationFailed,
    ConfigError,
    InvalidCommand,
    LeveretError,
    PreconditionFailed,
)
from leveret.pipeline.upstream.stream_connection import (
    BLOCK_BYTES,
    FRAME_BYTES_MAX,
    LOOK_AHEAD_BYTES,
    ConnectionLost,
    StreamConnection,
    is_deliver,
    name_of,
)
from leveret.session.stream.writing import RECOVERY_FRAME_BYTES_MAX
from leveret.wire.stream import commands as wire
from leveret.wire.stream.codec import Code, StreamCommand
from leveret.wire.stream.frames import FrameDecoder

TIMEOUT_S = 10.0


class Line:
    """The server's end: what the client says, one command at a time."""

    def __init__(self, peer: socket.socket) -> None:
        self.peer = peer
        self._decoder = FrameDecoder(1 << 20)
        self._frames: list[bytes] = []

    def hear(self) -> StreamCommand | None:
        while not self._frames:
            data = self.peer.recv(65536)
            if not data:
                return None
            self._frames = list(self._decoder.feed(data))
        return wire.decode(self._frames.pop(0))

    def say(self, *commands: StreamCommand) -> None:
        self.peer.sendall(b"".join(command.encode() for command in commands))

    def handshake(self, mechanisms: tuple[str, ...] = ("PLAIN",), version: str = "4.0.0+rc") -> None:
        self.hear()
        self.say(wire.PeerPropertiesResponse(1, Code.OK, {"product": "Other", "version": version}))
        self.hear()
        self.say(wire.SaslHandshakeResponse(2, Code.OK, list(mechanisms)))
        if "PLAIN" not in mechanisms:
            return
        self.hear()
        self.say(wire.SaslAuthenticateResponse(3, Code.OK), wire.Tune(0, 60))
        assert self.hear() == wire.Tune(0, 0), "no heartbeats are asked for"
        self.hear()
        self.say(wire.OpenResponse(4, Code.OK, {}))


@contextmanager
def server(script: Callable[[Line], None]) -> Iterator[int]:
    """Runs `script` for the one connection that comes; its failure fails the test."""
    failures: list[BaseException] = []

    def serve() -> None:
        try:
            peer, _ = listener.accept()
            with closing(peer):
                peer.settimeout(TIMEOUT_S)
                script(Line(peer))
        except BaseException as error:
            failures.append(error)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(TIMEOUT_S)
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(TIMEOUT_S)
    assert not failures, failures


def connection(port: int, timeout_s: float = TIMEOUT_S) -> StreamConnection:
    return StreamConnection(
        "127.0.0.1", port, vhost="/", username="guest", password="guest", timeout_s=timeout_s
    )


def query(link: StreamConnection) -> wire.QueryOffset:
    return wire.QueryOffset(link.next_id(), "r", "s")


@pytest.mark.parametrize(
    "version",
    ["", "4", "4.x", "9" * 5000 + ".1", "1." + "9" * 5000, "\u0664.0"],
    ids=["none", "one number", "a text", "long", "long in its second number", "another script"],
)
def test_a_version_that_is_none_is_no_failure(version: str) -> None:
    with server(lambda line: line.handshake(version=version)) as port, closing(connection(port)) as link:
        assert link.server_version in ((0, 0), (4,))


def test_a_server_without_plain_is_not_logged_in_to() -> None:
    with server(lambda line: line.handshake(("EXTERNAL",))) as port, pytest.raises(AuthenticationFailed):
        connection(port)


def test_a_server_that_limits_nothing_limits_frames_all_the_same() -> None:
    with server(Line.handshake) as port, closing(connection(port)) as link:
        assert link.frame_max_bytes == FRAME_BYTES_MAX
        assert link.server_version == (4, 0)
        assert not link.is_leveret


@pytest.mark.parametrize(
    ("octets", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "an HTTP listener answers there: name a stream listener"),
        (b"AMQP\0\0\x09\1", "an AMQP listener answers there: name a stream listener"),
        (b"\x7f\0\0\0abc", "frame of 2130706432 octets was announced"),
        (b"\0\0\0\3abc", "frame of 3 octets was announced"),
        (bytes.fromhex("00000004 9999 0001"), "unknown frame: key 0x9999"),
        (bytes.fromhex("00000006 8011 0001 0000"), "PeerPropertiesResponse: 4 octets announced"),
        (b"", "closed it without a reason"),
        (b"\0\0\0\x20part", "closed it without a reason"),
    ],
)
def test_what_is_not_the_protocol_loses_the_connection_and_says_so(octets: bytes, reason: str) -> None:
    def script(line: Line) -> None:
        line.hear()
        line.peer.sendall(octets)

    with server(script) as port, pytest.raises(ConnectionLost, match=reason):
        connection(port)


@given(st.binary(max_size=200))
@settings(max_examples=50)
def test_no_garbage_raises_anything_but_our_own_errors(octets: bytes) -> None:
    def script(line: Line) -> None:
        line.hear()
        line.peer.sendall(octets)

    with server(script) as port, pytest.raises(LeveretError):
        connection(port)


def test_answers_to_other_questions_heartbeats_and_late_chunks_are_stepped_over() -> None:
    def script(line: Line) -> None:
        line.handshake()
        asked = line.hear()
        assert isinstance(asked, wire.QueryOffset)
        line.say(
            wire.Heartbeat(),
            wire.Deliver(0, b"late" * LOOK_AHEAD_BYTES),
            wire.QueryOffsetResponse(asked.correlation + 1000, Code.OK, 1),
            wire.QueryOffsetResponse(asked.correlation, Code.OK, 7),
        )
        assert line.hear() == wire.Heartbeat(), "a heartbeat is answered with one"
        close = line.hear()
        assert isinstance(close, wire.Close)
        line.say(wire.CloseResponse(close.correlation, Code.OK))

    with server(script) as port, closing(connection(port)) as link:
        assert link.request(query(link), wire.QueryOffsetResponse).offset == 7


@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        (Code.PRECONDITION_FAILED, PreconditionFailed, r"QueryOffset: precondition failed \(code 17\)"),
        (99, InvalidCommand, "QueryOffset: code 99"),
    ],
)
def test_a_refusal_is_an_error_of_its_own_kind_in_words(
    code: int, error: type[LeveretError], words: str
) -> None:
    def script(line: Line) -> None:
        line.handshake()
        asked = line.hear()
        assert isinstance(asked, wire.QueryOffset)
        line.say(wire.QueryOffsetResponse(asked.correlation, code, 0))

    with server(script) as port:
        link = connection(port)
        with pytest.raises(error, match=words):
            link.request(query(link), wire.QueryOffsetResponse)
        link.close()


def test_a_server_that_closes_is_answered_and_its_reason_is_told() -> None:
    def script(line: Line) -> None:
        line.handshake()
        line.say(wire.Close(8, Code.INTERNAL_ERROR, "out of everything"))
        while not isinstance(heard := line.hear(), wire.CloseResponse):
            assert heard is not None, "the answer to our Close"
        assert heard == wire.CloseResponse(8, Code.OK)

    with server(script) as port:
        link = connection(port)
        with pytest.raises(ConnectionLost, match=r"internal error.*out of everything"):
            link.request(query(link), wire.QueryOffsetResponse)
        assert link.closed


def test_a_server_that_takes_nothing_is_given_up_after_the_timeout() -> None:
    done = threading.Event()

    def script(line: Line) -> None:
        line.handshake()
        done.wait(TIMEOUT_S)

    with server(script) as port:
        link = connection(port, timeout_s=0.3)
        with pytest.raises(ConnectionLost, match="nothing could be sent"):
            link.send(bytes(100_000_000))
        done.set()


def test_a_goodbye_nobody_answers_is_not_waited_for() -> None:
    with server(Line.handshake) as port:
        link = connection(port, timeout_s=0.2)
        link.close()
        assert link.closed


@pytest.mark.parametrize("size", [10, LOOK_AHEAD_BYTES - 5, LOOK_AHEAD_BYTES, 3 * LOOK_AHEAD_BYTES + 1])
@pytest.mark.parametrize("piece", [1 << 20, 50_000])
def test_frames_of_any_size_arrive_whole_however_they_are_sent(size: int, piece: int) -> None:
    chunks = [bytes([number]) * size for number in range(5)]

    def script(line: Line) -> None:
        line.handshake()
        octets = b"".join(wire.Deliver(1, chunk).encode() for chunk in chunks)
        for start in range(0, len(octets), piece):
            line.peer.sendall(octets[start : start + piece])

    with server(script) as port:
        link = connection(port)
        frames = [link.next_frame() for _ in chunks]
        link.close()
    assert all(map(is_deliver, frames))
    assert [bytes(frame[5:]) for frame in frames] == chunks, "each in memory of its own"


def test_frames_that_are_kept_together_stand_in_blocks_of_memory() -> None:
    sizes = [10, BLOCK_BYTES - 100, 70_000, BLOCK_BYTES + 1, 10]
    chunks = [bytes([number + 1]) * size for number, size in enumerate(sizes)]

    def script(line: Line) -> None:
        line.handshake()
        for chunk in (*chunks, b"z"):
            line.peer.sendall(wire.Deliver(1, chunk).encode())

    with server(script) as port:
        link = connection(port)
        with link.side_by_side():
            frames = [link.next_frame() for _ in chunks]
        apart = link.next_frame()
        link.close()
    assert [bytes(frame[5:]) for frame in frames] == chunks
    first, second, third, large, last = (frame.obj for frame in frames)
    assert first is second, "they fit"
    assert len({id(block) for block in (first, third, large, last, apart.obj)}) == 5


def test_a_wait_in_which_nothing_comes_leaves_the_connection_as_it_was() -> None:
    said = threading.Event()

    def script(line: Line) -> None:
        line.handshake()
        said.wait(TIMEOUT_S)
        line.peer.sendall(wire.Deliver(1, b"a").encode() + wire.Deliver(1, b"b").encode())
        line.hear()

    with server(script) as port:
        link = connection(port)
        assert not link.comes_within(0.01)
        said.set()
        for octet in (b"a", b"b"):
            assert link.comes_within(TIMEOUT_S)
            assert bytes(link.next_frame()[5:]) == octet
        assert not link.comes_within(0.01)
        link.close()
        assert link.comes_within(0.01), "whoever reads now is told that it is closed"


def test_codes_have_names() -> None:
    assert name_of(8) == "authentication failure (code 8)"
    assert name_of(4711) == "code 4711"


def test_the_largest_message_that_may_be_configured_is_transferred_and_recovered() -> None:
    with_head_bytes = load(None, {"max_message_size": "536870912"}).amqp.message_bytes_max + 100_000
    assert with_head_bytes < FRAME_BYTES_MAX
    assert with_head_bytes < RECOVERY_FRAME_BYTES_MAX
    with pytest.raises(ConfigError):
        load(None, {"max_message_size": "536870913"})
