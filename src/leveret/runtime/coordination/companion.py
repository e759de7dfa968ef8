"""A companion of a lease: a small process that ends the lease in etcd the moment this process is gone.

    companion = LeaseCompanion(config.etcd, lease_id, ttl_s)
    companion.ensure_started()                               # starts it; later, starts it again if it has ended
    companion.release()                                      # the lease is over, or given back

Without it a lease outlasts its holder by up to its whole time, and no other node leads meanwhile, although the kernel
knows of the death at once. companion_process is the program. docs/adr/0032-companion.md has the reason why two nodes
never confirm at once: the companion ends the lease only if the kernel says that this process has ended. A process that
hangs, or is stopped, keeps its lease until it ends by itself. If the companion is killed, hangs, or cannot be started,
other nodes wait for the end of the lease, as without a companion.

The companion gets etcd's addresses and credentials through a pipe, and this process as a descriptor (pidfd): arguments
and environment contain no secret.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

import msgspec

from leveret.config.sections.etcd import EtcdOptions
from leveret.config.uris import EtcdEndpoint
from leveret.runtime.coordination import companion_process
from leveret.wire.tls import FORWARD_SECRET

logger = logging.getLogger(__name__)

STARTS_MAX: Final = 5
"""The starts for one lease: a companion that keeps ending by itself is not started for ever."""
_KEPT_VARIABLES: Final = ("LD_LIBRARY_PATH",)
_PORTS: Final = {"http": 80, "https": 443}


class LeaseCompanion:
    """See the module."""

    def __init__(self, options: EtcdOptions, lease_id: int, ttl_s: float) -> None:
        """Start nothing yet."""
        self._brief = _brief(options, lease_id, ttl_s)
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0

    @property
    def pid(self) -> int:
        """The companion's process id; 0 while it does not run."""
        return self._process.pid if self._process is not None else 0

    def ensure_started(self) -> None:
        """Start the companion if it does not run; a failure is only logged, because the lease works without it."""
        process = self._process
        if process is not None:
            if process.poll() is None:
                return
            logger.warning("lease_companion_ended pid=%d status=%d", process.pid, process.returncode)
            self._forget()
        if self._starts < STARTS_MAX:
            self._starts += 1
            try:
                self._start()
            except (OSError, AttributeError) as error:
                # Before Linux 5.3, and where a sandbox forbids it, there is no pidfd.
                self._starts = STARTS_MAX
                logger.warning(
                    "lease_companion_not_started error=%s effect=%s",
                    error,
                    "if this process is killed, others wait for the end of its lease",
                )
                self._forget()

    def _start(self) -> None:
        pidfd = os.pidfd_open(os.getpid())
        try:
            self._process = process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-E", companion_process.__file__, str(pidfd)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(pidfd,),
                # The companion gets no signal that a terminal sends to this process group, and keeps no directory.
                start_new_session=True,
                cwd="/",
                env={name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ},
            )
        finally:
            os.close(pidfd)
        assert process.stdin is not None
        # The brief is far smaller than a pipe's buffer, so this never blocks. The pipe stays open.
        process.stdin.write(self._brief)
        process.stdin.flush()

    def release(self) -> None:
        """End the companion: the lease is over, or this process is ending it."""
        if self._process is not None:
            self._process.kill()
            self._forget()

    def _forget(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
        process.kill()
        # The process was killed, or has ended: this returns at once.
        process.wait()


def _brief(options: EtcdOptions, lease_id: int, ttl_s: float) -> bytes:
    """Return the brief for companion_process."""
    lines = [_endpoint(each) for each in options.endpoints]
    if options.cacertfile is not None:
        lines.append(f"authorities {_hex(str(options.cacertfile.absolute()))}")
    lines += [f"ciphers {_hex(FORWARD_SECRET)}", f"lease {lease_id} {ttl_s:g}"]
    return "".join(f"{line}\n" for line in lines).encode()


def _endpoint(endpoint: EtcdEndpoint) -> str:
    url = urlsplit(endpoint.url)
    login = {"name": endpoint.username, "password": endpoint.password}
    body = msgspec.json.encode(login).hex() if endpoint.username else "-"
    port = url.port or _PORTS[url.scheme]
    return f"endpoint {url.scheme} {_hex(url.hostname or '')} {port} {_hex(url.path)} {body}"


def _hex(text: str) -> str:
    return text.encode().hex()
