"""A start of Leveret's programs without their imports: a process that has imported the modules is forked.

The imports of a program take a second of processor time, and a run of the tests starts thousands of programs.

    warm_start.enable()                                   # once, for this process
    process = warm_start.start("leveret.cli.ctl", [...], stdout=log, stderr=log)

A forked program is a normal process with its own session, environment, descriptors and exit status. `start` runs
`python -m` instead unless `enable` was called, as demos and benchmarks measure the real start, and also if the
environment differs in a variable that Python reads at its start.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import multiprocessing
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final, Self

NODE: Final = "leveret.cli.server"
CTL: Final = "leveret.cli.ctl"

# Names only, because this module knows programs by their commands alone. A final dot means all modules of a package.
_OF_ALL: Final = ("rich.console", "typer.main", "typer._adapters")
_BY_PROGRAM: Final = {
    NODE: (
        "uvloop",
        "leveret.cli.logs",
        "leveret.cli.service",
        "leveret.management.http.server",
        "leveret.runtime.roles.roles",
        "leveret.runtime.sockets.connection_budget",
    ),
    CTL: ("leveret.cli.api", "leveret.cli.output.grouped_help", "leveret.cli.commands."),
}
_READ_AT_START: Final = ("PYTHON", "LD_", "MALLOC_", "GLIBC_")
_LENGTH: Final = struct.Struct("!I")
_EXIT: Final = struct.Struct("!i")
_PID: Final = struct.Struct("!i")

Descriptor = int | IO[Any]

_enabled = False
_parents: dict[tuple[str, str], _Parent] = {}
"""By program and mount namespace: a forked program has to see the same mounts as the thread that starts it."""


def enable() -> None:
    """Have `start` fork from now on. The processes that it forks from end with this process."""
    global _enabled
    _enabled = True


def share() -> None:
    """Have the processes that are forked from begin now: forks that this process makes later share them."""
    for program in (NODE, CTL):
        _parent_of(program)


def start(
    program: str,
    arguments: Sequence[str],
    *,
    stdin: Descriptor = subprocess.DEVNULL,
    stdout: Descriptor,
    stderr: Descriptor,
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes] | WarmProcess:
    """Start NODE or CTL in a session of its own; descriptors are as for `subprocess.Popen`, without pipes."""
    env = dict(os.environ if env is None else env)
    if not _enabled or _at_start(env) != _at_start(os.environ):
        argv = [sys.executable, "-m", program, *arguments]
        return subprocess.Popen(
            argv, stdin=stdin, stdout=stdout, stderr=stderr, env=env, start_new_session=True
        )
    with _opened(stdin) as zero, _opened(stdout) as one, _opened(stderr) as two:
        return _parent_of(program).fork(arguments, env, (zero, one, two))


def run(
    program: str, arguments: Sequence[str], *, env: Mapping[str, str], input_text: str = "", timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run CTL (or NODE) to its end; return its status and output.

    Raises:
        subprocess.TimeoutExpired: the program did not end within `timeout_s`, and was killed.
    """
    with TemporaryFile() as given, TemporaryFile() as output, TemporaryFile() as errors:
        given.write(input_text.encode())
        given.seek(0)
        process = start(program, arguments, stdin=given, stdout=output, stderr=errors, env=env)
        try:
            status = process.wait(timeout_s)
        except BaseException:
            process.kill()
            process.wait()
            raise
        texts = []
        for each in (output, errors):
            each.seek(0)
            texts.append(each.read().decode())
    argv = [sys.executable, "-m", program, *arguments]
    return subprocess.CompletedProcess(argv, status, *texts)


def _parent_of(program: str) -> _Parent:
    kind = program, os.readlink("/proc/thread-self/ns/mnt")
    if kind not in _parents:
        _parents[kind] = _Parent(program)
    return _parents[kind]


def _at_start(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(_READ_AT_START)}


@contextlib.contextmanager
def _opened(place: Descriptor) -> Any:
    if place == subprocess.DEVNULL:
        with Path(os.devnull).open("r+b") as null:
            yield null.fileno()
    else:
        yield place if isinstance(place, int) else place.fileno()


class WarmProcess:
    """The needed part of `subprocess.Popen`, for a process that is not a child of this one."""

    def __init__(self, pid: int, ended: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = ended
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None while it runs."""
        # As for a child of one's own, there is a status from the moment that others can see the process's end.
        return self._status(None if _has_ended(self.pid) else 0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status.

        Raises:
            subprocess.TimeoutExpired: the process did not end within `timeout` seconds.
        """
        status = self._status(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask the process to end (SIGTERM)."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process."""
        self.send_signal(signal.SIGKILL)

    def _status(self, timeout_s: float | None) -> int | None:
        with self._lock:
            if self.returncode is None:
                with selectors.DefaultSelector() as selector:
                    selector.register(self._ended, selectors.EVENT_READ)
                    if not selector.select(timeout_s):
                        return None
                octets = self._ended.recv(_EXIT.size)
                self._ended.close()
                # Its parent ended without a report, so this run ends, and the process is killed with it.
                self.returncode = _EXIT.unpack(octets)[0] if octets else -signal.SIGKILL
            return self.returncode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.wait()


def _has_ended(pid: int) -> bool:
    """Whether the kernel no longer runs the process, though its parent may not have said so yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


class _Parent:
    """The process that has imported a program's modules, seen from the process that uses it."""

    def __init__(self, program: str) -> None:
        self._ours, theirs = socket.socketpair()
        # Of threads, and of the processes that share it: one order and its answer at a time.
        self._lock = multiprocessing.get_context("fork").Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, program, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        atexit.register(self.close)

    def fork(self, arguments: Sequence[str], env: Mapping[str, str], places: Sequence[int]) -> WarmProcess:
        ended, theirs = socket.socketpair()
        order = json.dumps({"arguments": list(arguments), "env": dict(env), "cwd": str(Path.cwd())}).encode()
        with self._lock, theirs:
            socket.send_fds(self._ours, [_LENGTH.pack(len(order))], [*places, theirs.fileno()])
            self._ours.sendall(order)
            pid = self._ours.recv(_PID.size, socket.MSG_WAITALL)
        if not pid:
            raise OSError("the process that forks has ended")
        return WarmProcess(_PID.unpack(pid)[0], ended)

    def close(self) -> None:
        self._ours.close()
        self._process.wait()


# -- the process that forks ---------------------------------------------------------------------------------


def _serve(program: str, orders: socket.socket) -> None:
    """Fork once for each order, and report the end of each program; return when the socket of orders is closed."""
    _import(program)
    gc.collect()
    gc.freeze()
    waker, woken = socket.socketpair()
    for end in (waker, woken):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    running: dict[int, socket.socket] = {}
    selector = selectors.DefaultSelector()
    selector.register(orders, selectors.EVENT_READ)
    selector.register(woken, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is woken:
                with contextlib.suppress(BlockingIOError):
                    woken.recv(4096)
                _reap(running)
            elif (received := _received(orders)) is None:
                return
            else:
                order, (*places, ended) = received
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    selector.close()
                    for each in (orders, waker, woken, *running.values()):
                        each.close()
                    os.close(ended)
                    _become(program, order, places)
                for each_place in places:
                    os.close(each_place)
                running[pid] = socket.socket(fileno=ended)
                orders.sendall(_PID.pack(pid))


def _import(program: str) -> None:
    """Import the program's modules. The program imports itself what the lists above lack."""
    for name in (*_OF_ALL, *_BY_PROGRAM[program]):
        module = importlib.import_module(name.removesuffix("."))
        if name.endswith("."):
            for found in pkgutil.walk_packages(module.__path__, name):
                importlib.import_module(found.name)


def _reap(running: dict[int, socket.socket]) -> None:
    for pid in list(running):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with running.pop(pid) as asker, contextlib.suppress(OSError):
                asker.sendall(_EXIT.pack(os.waitstatus_to_exitcode(status)))


def _received(orders: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    head, descriptors, _, _ = socket.recv_fds(orders, _LENGTH.size, 4)
    if not head:
        return None
    body = orders.recv(_LENGTH.unpack(head)[0], socket.MSG_WAITALL)
    return json.loads(body), descriptors


def _become(program: str, order: Mapping[str, Any], places: Sequence[int]) -> None:
    """Become the program, and exit with its status."""
    status = 1
    try:
        os.setsid()
        for number, place in enumerate(places):
            os.dup2(place, number)
            os.close(place)
        os.chdir(order["cwd"])
        os.environ.clear()
        os.environ.update(order["env"])
        sys.argv = [program, *order["arguments"]]
        status = _run(program)
        threading._shutdown()  # type: ignore[attr-defined]  # what the interpreter does at its end
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        if sys.exception() is not None:
            traceback.print_exc()
            sys.stderr.flush()
        os._exit(status)


def _run(program: str) -> int:
    try:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[2])) as given:
        _serve(sys.argv[1], given)
