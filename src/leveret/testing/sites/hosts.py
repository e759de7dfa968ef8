"""A small network of hosts that a test can harm: cut off, cut in one direction, lossy, slow.

    status = run_in_world("tests.cluster.partitions", *arguments, folder=root, log_file=log, timeout_s=120)

runs a module where nothing outside can be reached: in a user namespace and a network namespace of its own. There

    with Network() as network:
        a, b = network.add("a"), network.add("b")
        with a.entered():                            # what this thread does is done at host a
            socket.create_connection((b.address, 5672))
        with network.cut([a], [b]):                  # nothing passes, and nobody is told
            ...

Each host is a network namespace, with a loopback of its own and one address. A wire leads from it to a router, the
namespace in which the world began, that passes packets on, or drops them: without an answer, so that connections
stand until one of their ends has had enough. An ordinary user may do all this; all of it is gone when the world's last
process is.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from leveret.testing.network.ports import NotReady, wait_until
from leveret.testing.servers.process import ServerProcess

_CLONE_NEWNET: Final = 0x40000000
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_HERE: Final = "/proc/thread-self/ns/net"
_OUTSIDE: Final = "NETWORK_OUTSIDE"
"""In a world: which network namespace is the one that must not be touched."""
_IPV4: Final = Path("/proc/sys/net/ipv4")
_NET: Final = "192.0.2."
"""Addresses that nobody has: they are kept for examples (RFC 5737)."""
_ROUTER: Final = f"{_NET}254"
_HOSTS_MAX: Final = 200
_COMMAND_TIMEOUT_S: Final = 20.0
_WHOLE: Final = 1 << 32
_DROP, _PASS = 2, 0
_WORLD: Final = ("--user", "--map-root-user", "--net")
_TRIAL: Final = """
set -e
ip link add first type veth peer name second
echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter
echo 1 > /proc/sys/net/ipv4/ip_forward
ip rule add pref 1 from 192.0.2.1 to 192.0.2.2 blackhole
"""


@cache
def available() -> str | None:
    """Return None if a network can be made here, else the reason why not and what would help."""
    for program, package in (("unshare", "util-linux"), ("ip", "iproute2"), ("tc", "iproute2")):
        if _program(program) is None:
            return f"no program {program}: the package {package} brings it"
    tried = subprocess.run(
        [str(_program("unshare")), *_WORLD, "/bin/sh", "-c", _TRIAL],
        env=_env(),
        capture_output=True,
        text=True,
        timeout=_COMMAND_TIMEOUT_S,
        check=False,
    )
    if tried.returncode:
        said = " ".join(tried.stderr.split())
        return f"no network of hosts can be made: {said}: user and network namespaces must be allowed"
    return None


def run_in_world(module: str, *args: str, folder: Path, log_file: Path, timeout_s: float) -> int:
    """Run a Python module where there is no network but what it makes; return its exit status.

    Args:
        module: to be run as a program.
        args: its arguments.
        folder: where it is run, and found.
        log_file: what it prints is appended there.
        timeout_s: after this it is killed, and so is all that it started.

    Raises:
        NotReady: it took longer.
    """
    world = ServerProcess(log_file)
    argv = [str(_program("unshare")), *_WORLD, sys.executable, "-m", module, *args]
    world.launch(argv, {**_env(), _OUTSIDE: os.readlink(_HERE)}, cwd=folder)
    try:
        wait_until(lambda: not world.alive, f"{module} {' '.join(args)}", timeout_s, interval_s=0.1)
        status = world.exit_status
    finally:
        world.close()
    assert status is not None
    return status


class NetworkHost:
    """One host of a Network.

    Attributes:
        name: at most ten characters.
        address: where the other hosts find it.
    """

    def __init__(self, name: str, address: str) -> None:
        """A namespace with nothing in it."""
        self.name = name
        self.address = address
        with _returning():
            _check(_LIBC.unshare(_CLONE_NEWNET), f"no network namespace for host {name}")
            self._namespace = os.open(_HERE, os.O_RDONLY | os.O_CLOEXEC)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """What this thread does in the block is done at this host: sockets made, processes and threads started."""
        with _returning():
            _enter(self._namespace)
            yield

    def close(self) -> None:
        """Enter it no more; it is gone when the last process and the last socket there are."""
        os.close(self._namespace)


class NetworkLink(NamedTuple):
    """How bad a host's wire is, in both directions: the part of packets that is lost, and bits a second at most."""

    loss: float = 0.0
    rate_bit_s: int = 0


class Network:
    """See the module; a context manager. It must be in a world of its own."""

    def __init__(self) -> None:
        """Make this namespace the router.

        Raises:
            NotReady: nobody made a namespace for this, so it would be done to the machine's own network.
        """
        if os.environ.get(_OUTSIDE, os.readlink(_HERE)) == os.readlink(_HERE):
            raise NotReady("a Network is made in a world of its own: see run_in_world")
        self._router = os.open(_HERE, os.O_RDONLY | os.O_CLOEXEC)
        self._hosts: dict[str, NetworkHost] = {}
        self._rules = 0
        # Before there is a wire: wires get what is the default then. A cut in one direction must not work in both.
        for name in ("conf/all/rp_filter", "conf/default/rp_filter"):
            (_IPV4 / name).write_text("0")
        (_IPV4 / "ip_forward").write_text("1")
        _ip("link set lo up")

    def close(self) -> None:
        """Enter no host any more."""
        for host in self._hosts.values():
            host.close()
        os.close(self._router)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def add(self, name: str) -> NetworkHost:
        """A host, with a wire to all others."""
        number = len(self._hosts) + 1
        assert name not in self._hosts, f"host {name} is there"
        assert number <= _HOSTS_MAX, "the network is full"
        host = self._hosts[name] = NetworkHost(name, f"{_NET}{number}")
        with host.entered():
            _ip(
                "link set lo up",
                f"link add wire type veth peer name {_wire(host)} netns /proc/{os.getpid()}/fd/{self._router}",
                f"address add {host.address}/32 dev wire",
                "link set wire up",
                f"route add {_ROUTER} dev wire",
                f"route add default via {_ROUTER}",
            )
        with self._at_router():
            _ip(
                f"link set {_wire(host)} up",
                f"address add {_ROUTER}/32 dev {_wire(host)}",
                f"route add {host.address} dev {_wire(host)}",
            )
        return host

    @contextmanager
    def cut(
        self, these: Sequence[NetworkHost], those: Sequence[NetworkHost], *, back: bool = True
    ) -> Iterator[None]:
        """Drop what these send to those while the block runs, and with `back` what those send to these."""
        pairs = [(one, other) for one in these for other in those if one is not other]
        if back:
            pairs += [(other, one) for one, other in pairs]
        rules = []
        for one, other in pairs:
            self._rules += 1
            rules.append(f"pref {self._rules} from {one.address} to {other.address} blackhole")
        with self._at_router():
            _ip(*(f"rule add {rule}" for rule in rules))
        try:
            yield
        finally:
            with self._at_router():
                _ip(*(f"rule del {rule}" for rule in rules))

    @contextmanager
    def bad(self, host: NetworkHost, link: NetworkLink) -> Iterator[None]:
        """Lose packets from and to a host, and let few pass, while the block runs."""
        wire = _wire(host)
        with self._at_router():
            _tc(f"qdisc add dev {wire} clsact")
            for way in ("ingress", "egress"):
                _tc(f"filter add dev {wire} {way} bpf da bytecode", _lossy(link.loss))
            if link.rate_bit_s:
                _tc(f"qdisc add dev {wire} root tbf rate {link.rate_bit_s}bit burst 16kb latency 200ms")
        if link.rate_bit_s:
            with host.entered():
                _tc(f"qdisc add dev wire root tbf rate {link.rate_bit_s}bit burst 16kb latency 200ms")
        try:
            yield
        finally:
            with self._at_router():
                _tc(f"qdisc del dev {wire} clsact")
                if link.rate_bit_s:
                    _tc(f"qdisc del dev {wire} root")
            if link.rate_bit_s:
                with host.entered():
                    _tc("qdisc del dev wire root")

    @contextmanager
    def _at_router(self) -> Iterator[None]:
        with _returning():
            _enter(self._router)
            yield


def _wire(host: NetworkHost) -> str:
    return f"to-{host.name}"


def _lossy(part: float) -> str:
    """A filter in the kernel's machine code: by a random number each packet is dropped or passes."""
    # Load the random number (ancillary field 56 behind 0xfffff000); if it is at least the bound, pass.
    bound = min(_WHOLE - 1, int(part * _WHOLE))
    return f"4,32 0 0 {0xFFFFF000 + 56},53 1 0 {bound},6 0 0 {_DROP},6 0 0 {_PASS}"


@contextmanager
def _returning() -> Iterator[None]:
    """Have this thread come back to where it is."""
    home = os.open(_HERE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield
    finally:
        try:
            _enter(home)
        finally:
            os.close(home)


def _enter(namespace: int) -> None:
    _check(_LIBC.setns(namespace, _CLONE_NEWNET), "a network namespace cannot be entered")


def _check(result: int, what: str) -> None:
    if result:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def _ip(*commands: str) -> None:
    _run([str(_program("ip")), "-batch", "-"], "\n".join(commands))


def _tc(command: str, *last: str) -> None:
    _run([str(_program("tc")), *command.split(), *last], "")


def _run(argv: Sequence[str], given: str) -> None:
    done = subprocess.run(
        argv,
        input=given,
        capture_output=True,
        text=True,
        timeout=_COMMAND_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise NotReady(f"{' '.join(argv)}: {done.stderr.strip()}\n{given}")


def _env() -> dict[str, str]:
    """Where an ordinary user finds these programs too."""
    return {**os.environ, "PATH": f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"}


def _program(name: str) -> str | None:
    return shutil.which(name, path=_env()["PATH"])
