"""The transport of a link in the tests of one end: no socket, and no other end."""

from __future__ import annotations


class Transport:
    """Notes whether the socket is read."""

    def __init__(self) -> None:
        self.reads = True
        self.pauses = 0
        self.is_closed = False

    def get_extra_info(self, name: str) -> None:
        return None

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def write(self, octets: bytes) -> None:
        pass

    def pause_reading(self) -> None:
        self.reads, self.pauses = False, self.pauses + 1

    def resume_reading(self) -> None:
        assert not self.is_closed
        self.reads = True

    def close(self) -> None:
        self.is_closed = True

    abort = close
