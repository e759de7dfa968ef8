"""The program of a lease's companion: it ends a lease in etcd once the process that had the lease is gone.

    python -I -S -E companion_process.py PIDFD < brief

PIDFD is an inherited descriptor of the process that is watched (pidfd_open), and standard input is a pipe that this
process holds open. The brief has a word and its values on each line, texts in hexadecimal digits:

    endpoint http|https HOST PORT PATH LOGIN     of etcd; LOGIN is the body of a login, or -
    authorities FILE                             trusted for https, instead of the system's
    ciphers SUITES                               of TLS 1.2
    lease ID TTL_S                               the lease, last

Only the kernel's report counts: PIDFD becomes readable when the last thread of the process has ended, so no
instruction of the process is carried out any more. The end of the pipe alone means nothing: the companion then waits
for the kernel's report as long as the lease could last, and ends. After the death of the process the companion tries
for the lease's time, and ends too.

The program imports little, and nothing of the project: it waits for months and takes a few megabytes.
"""

from __future__ import annotations

import _thread
import os
import select
import signal
import socket
import sys
import time

_ATTEMPT_S = 1.0
_RETRY_S = 0.05
_ANSWER_BYTES_MAX = 65536
_NOT_ENABLED = b"authentication is not enabled"
_IS_OVER = b"requested lease not found"


class Endpoint:
    """A member of etcd."""

    def __init__(self, scheme: str, host: str, port: str, path: str, login: str) -> None:
        """Take the words of the brief."""
        self.is_tls = scheme == "https"
        self.host = _text(host)
        self.port = int(port)
        self.path = _text(path)
        self.login = b"" if login == "-" else bytes.fromhex(login)


class RevocationRequest:
    """The parts of the brief received so far: the lease, and etcd.

    Attributes:
        lease_id: 0 until it is received.
    """

    def __init__(self) -> None:
        """Start without a lease."""
        self.endpoints: list[Endpoint] = []
        self.authorities = ""
        self.ciphers = ""
        self.lease_id = 0
        self.ttl_s = 1.0
        self._rest = b""
        self._context: object = None

    def take(self, octets: bytes) -> None:
        """Read further octets of the brief."""
        *lines, self._rest = (self._rest + octets).split(b"\n")
        for line in lines:
            word, *values = line.decode().split(" ")
            if word == "endpoint":
                self.endpoints.append(Endpoint(*values))
            elif word == "authorities":
                self.authorities = _text(values[0])
            elif word == "ciphers":
                self.ciphers = _text(values[0])
            elif word == "lease":
                self.lease_id, self.ttl_s = int(values[0]), float(values[1])
                self._trust()

    def _trust(self) -> None:
        """Read the authorities now: after the death only etcd is needed."""
        if not any(each.is_tls for each in self.endpoints):
            return
        import ssl  # It takes two megabytes, which most companions save.

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self.authorities:
            context.load_verify_locations(self.authorities)
        else:
            context.load_default_certs()
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(self.ciphers)
        self._context = context

    def connected(self, endpoint: Endpoint) -> socket.socket:
        """Return a connection to a member of etcd. Raises OSError."""
        connection = socket.create_connection((endpoint.host, endpoint.port), _ATTEMPT_S)
        if not endpoint.is_tls:
            return connection
        try:
            wrapped: socket.socket = self._context.wrap_socket(  # type: ignore[attr-defined]
                connection, server_hostname=endpoint.host
            )
        except BaseException:
            connection.close()
            raise
        return wrapped


def _text(digits: str) -> str:
    return bytes.fromhex(digits).decode()


def _post(
    brief: RevocationRequest, endpoint: Endpoint, path: str, body: bytes, token: bytes
) -> tuple[int, bytes]:
    """Send one request on its own connection; return status, and head with body. Raises OSError."""
    head = f"POST {endpoint.path}/v3/{path} HTTP/1.1\r\nHost: {endpoint.host}:{endpoint.port}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
    authorization = b"Authorization: " + token + b"\r\n" if token else b""
    connection = brief.connected(endpoint)
    try:
        connection.sendall(head.encode() + authorization + b"\r\n" + body)
        answer = b""
        while len(answer) < _ANSWER_BYTES_MAX and (octets := connection.recv(_ANSWER_BYTES_MAX)):
            answer += octets
    finally:
        connection.close()
    status = answer[9:12]
    if not answer.startswith(b"HTTP/1.") or not status.isdigit():
        raise OSError("no answer of etcd")
    return int(status), answer


def _login(brief: RevocationRequest, endpoint: Endpoint) -> bytes:
    """Return the token for later requests; empty if etcd does not authenticate. Raises OSError."""
    if not endpoint.login:
        return b""
    status, answer = _post(brief, endpoint, "auth/authenticate", endpoint.login, b"")
    if status != 200:
        if _NOT_ENABLED in answer:
            return b""
        raise OSError("etcd refuses the user")
    return answer.partition(b'"token"')[2].split(b'"')[1]


def revoke(brief: RevocationRequest, endpoint: Endpoint) -> None:
    """End the lease. Raises OSError, or IndexError if an answer is not etcd's."""
    token = _login(brief, endpoint)
    status, answer = _post(brief, endpoint, "lease/revoke", b'{"ID": %d}' % brief.lease_id, token)
    if status != 200 and _IS_OVER not in answer:
        raise OSError(f"etcd answers {answer!r}")


def _revoke_at(brief: RevocationRequest, endpoint: Endpoint, until_s: float) -> None:
    while time.monotonic() < until_s:
        try:
            revoke(brief, endpoint)
        except (OSError, IndexError):
            time.sleep(_RETRY_S)
        else:
            # One member has ended the lease, so the other threads need not.
            os._exit(0)


def revoke_everywhere(brief: RevocationRequest) -> None:
    """End the lease at all members of etcd at the same time; a member that hangs delays no other."""
    until_s = time.monotonic() + brief.ttl_s
    for endpoint in brief.endpoints:
        _thread.start_new_thread(_revoke_at, (brief, endpoint, until_s))
    time.sleep(brief.ttl_s)


def is_over(pidfd: int, pipe: int, brief: RevocationRequest) -> bool:
    """Wait for the end of the process; return False if no end can be expected any more.

    Two nodes never confirm at once, because the lease is ended for this reason only (docs/adr/0032-companion.md): a
    process whose last thread has ended confirms nothing, and its lease covered all that it had sent before.
    """
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.register(pipe, select.POLLIN)
    patience_ms = None
    while events := dict(poll.poll(patience_ms)):
        if pipe in events:
            octets = os.read(pipe, _ANSWER_BYTES_MAX)
            brief.take(octets)
            if not octets:
                poll.unregister(pipe)
                patience_ms = brief.ttl_s * 1000
        elif pidfd in events:
            return True
    return False


def main() -> None:
    """See the module."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # Service managers send these to all processes of a service after the main process has ended.
        signal.signal(number, signal.SIG_IGN)
    brief = RevocationRequest()
    if is_over(int(sys.argv[1]), 0, brief) and brief.lease_id:
        revoke_everywhere(brief)


if __name__ == "__main__":
    main()
