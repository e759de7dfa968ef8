"""A small network of hosts, which a test can cut, in one direction or both, and make lossy or slow.

    status = run_in_world("tests.cluster.partitions", *arguments, folder=root, log_file=log, timeout_s=120)

runs a module in a *world*: a user namespace and a network namespace of its own, without a way to any other network.
There

    with Network() as network:
        a, b = network.add("a"), network.add("b")
        with a.entered():                            # sockets and processes of this thread belong to host a
            socket.create_connection((b.address, 5672))
        with network.cut([a], [b]):                  # packets are dropped without a notice
            ...

Each host is a network namespace with a loopback of its own and one address. A wire leads from the host to a router,
which is the world's first namespace. The router forwards packets or drops them. A dropped packet has no answer, so a
connection stays open until a timeout at one of its ends. All this needs no root, and ends with the world's last
process.
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
from typing import Final, NamedTuple, Self

from leveret.testing.network.ports import NotReady, wait_until
from leveret.testing.servers.process import ServerProcess

_CLONE_NEWNET: Final = 0x40000000
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_HERE: Final = "/proc/thread-self/ns/net"
_OUTSIDE: Final = "NETWORK_OUTSIDE"
"""The variable that has, in a world, the machine's own network namespace, which must stay as it is."""
_IPV4: Final = Path("/proc/sys/net/ipv4")
_NET: Final = "192.0.2."
"""Addresses for examples, which no machine has (RFC 5737)."""
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
    """Return None if a network can be made here, else the reason and the remedy."""
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
    """Run a Python module in a new world; return its exit status.

    Args:
        module: the module, which is run as a program.
        args: its arguments.
        folder: its working directory, from which it is imported.
        log_file: its output is appended to this file.
        timeout_s: after this time the module and its processes are killed.

    Raises:
        NotReady: the module took longer.
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
        name: the host's name, at most ten characters.
        address: its address in the network.
    """

    def __init__(self, name: str, address: str) -> None:
        """Make an empty namespace."""
        self.name = name
        self.address = address
        with _returning():
            _check(_LIBC.unshare(_CLONE_NEWNET), f"no network namespace for host {name}")
            self._namespace = os.open(_HERE, os.O_RDONLY | os.O_CLOEXEC)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Put this thread on the host for the block, with the sockets, processes and threads that it makes there."""
        with _returning():
            _enter(self._namespace)
            yield

    def close(self) -> None:
        """Release the namespace; it ends with the last process and the last socket in it."""
        os.close(self._namespace)


class NetworkLink(NamedTuple):
    """The faults of a host's wire, in both directions: the share of lost packets, and the bits a second, 0 for any."""

    loss: float = 0.0
    rate_bit_s: int = 0


class Network:
    """See the module; a context manager, for use in a world."""

    def __init__(self) -> None:
        """Make this namespace the router.

        Raises:
            NotReady: this is not a world, so the changes would be made to the machine's own network.
        """
        if os.environ.get(_OUTSIDE, os.readlink(_HERE)) == os.readlink(_HERE):
            raise NotReady("a Network is made in a world of its own: see run_in_world")
        self._router = os.open(_HERE, os.O_RDONLY | os.O_CLOEXEC)
        self._hosts: dict[str, NetworkHost] = {}
        self._rules = 0
        # With a filter for return paths, a cut in one direction would work in both. Each wire takes the default of the
        # time when it is made, so the default is set before the first wire.
        for name in ("conf/all/rp_filter", "conf/default/rp_filter"):
            (_IPV4 / name).write_text("0")
        (_IPV4 / "ip_forward").write_text("1")
        _ip("link set lo up")

    def close(self) -> None:
        """Release the namespaces of all hosts."""
        for host in self._hosts.values():
            host.close()
        os.close(self._router)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def add(self, name: str) -> NetworkHost:
        """Add a host, with a wire to the router; return it."""
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
        """Drop, for the block, the packets from `these` to `those`, and with `back` those of the other direction."""
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
        """Give a host's wire these faults for the block."""
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
    """Return a filter in the kernel's bytecode that drops this share of packets, by random numbers."""
    # Load a random number (ancillary field 56 behind 0xfffff000); pass the packet if the number is at least the bound.
    bound = min(_WHOLE - 1, int(part * _WHOLE))
    return f"4,32 0 0 {0xFFFFF000 + 56},53 1 0 {bound},6 0 0 {_DROP},6 0 0 {_PASS}"


@contextmanager
def _returning() -> Iterator[None]:
    """Return this thread to its present namespace at the end of the block."""
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
    """Return the environment with the folders of system programs, which an ordinary user's PATH may lack."""
    return {**os.environ, "PATH": f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"}


def _program(name: str) -> str | None:
    return shutil.which(name, path=_env()["PATH"])
