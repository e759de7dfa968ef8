"""One server process under test: its start, its measurements, its end.

Every server of the tests runs in a `ServerProcess`, and is a `Server`, so that a `with` block starts and ends it. The
process has a process group of its own. No process is left behind: a guard, a shell that reads a pipe from this
process, kills the group when this process ends, even by SIGKILL. Sizes and times come from /proc, so this is for
Linux only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from leveret.testing.network.ports import NotReady, wait_until
from leveret.testing.servers import warm_start

_GUARD: Final = 'read -r _; kill -KILL "-$1" 2>/dev/null'
_LOG_TAIL_LINES: Final = 20
_LOG_LINE_CHARS: Final = 300


class Server(ABC):
    """A server that runs in a `with` block. If the start fails, the server is closed as well."""

    @abstractmethod
    def start(self) -> Self:
        """Start the server; return when it answers."""

    @abstractmethod
    def close(self) -> None:
        """End every process, also those of a failed start, and remove their files."""

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *error: object) -> None:
        self.close()


class NodeServer(Server):
    """One node of a broker, of any product, with its process and its data.

    Attributes:
        product: the name of the broker.
        server: the process.
        amqp_port: the port of its AMQP listener.
        start_timeout_s, stop_timeout_s: the longest start and stop, unless a call has another limit.
    """

    product: str
    server: ServerProcess
    amqp_port: int
    start_timeout_s = 60.0
    stop_timeout_s = 60.0

    @abstractmethod
    def launch(self) -> None:
        """Start the node on its existing data, without waiting."""

    @abstractmethod
    def answers(self) -> bool:
        """Return whether every listener of the node answers."""

    def start(self, timeout_s: float | None = None) -> Self:
        """Start the node on its existing data; return when its listeners answer.

        Raises:
            NotReady: the node ended or took longer; the text has the end of its log.
        """
        self.launch()
        self.wait_ready(timeout_s)
        return self

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Wait until every listener of a launched node answers. Raises NotReady as `start`."""
        within_s = self.start_timeout_s if timeout_s is None else timeout_s
        self.server.wait(self.answers, f"{self.product} on port {self.amqp_port}", within_s)

    def stop(self, timeout_s: float | None = None) -> int:
        """End the node in order (SIGTERM), keeping its data; return its exit status."""
        return self.server.terminate(self.stop_timeout_s if timeout_s is None else timeout_s)

    def kill9(self) -> None:
        """Kill the node and its process group, as a crash would; its data stay."""
        self.server.kill9()

    def restart(self) -> Self:
        """Start again on the same data and ports, stopping the node first if it runs."""
        if self.alive:
            self.stop()
        return self.start()

    @property
    def alive(self) -> bool:
        """Whether the node's process runs."""
        return self.server.alive

    @property
    def pid(self) -> int:
        """Process id of the node."""
        return self.server.pid

    def rss_bytes(self) -> int:
        """Return the present resident memory of the node."""
        return self.server.rss_bytes()

    def cpu_seconds(self) -> float:
        """Return the processor time of the node since its start."""
        return self.server.cpu_seconds()

    def log_text(self) -> str:
        """Return the output of all starts of the node."""
        return self.server.log_text()

    def log_tail(self) -> str:
        """Return the end of the output, for an error."""
        return self.server.log_tail()


class ServerProcess:
    """A child process with its output in a file."""

    def __init__(self, log_file: Path) -> None:
        self.log_file = log_file
        self._process: subprocess.Popen[bytes] | warm_start.WarmProcess | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._offspring: set[tuple[int, int]] = set()

    def launch(self, argv: Sequence[str | Path], env: Mapping[str, str], cwd: Path | None = None) -> None:
        """Start the process; its output is appended to `log_file`. It must not be running."""
        self._prepare()
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [str(one) for one in argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(env),
                cwd=cwd,
                start_new_session=True,
            )
        self._watch(self._process.pid)

    def launch_own(self, program: str, arguments: Sequence[str], env: Mapping[str, str]) -> None:
        """Start a program of Leveret by `warm_start`, with its output in `log_file`. It must not be running."""
        self._prepare()
        with self.log_file.open("ab") as log:
            self._process = warm_start.start(program, arguments, stdout=log, stderr=log, env=env)
        self._watch(self._process.pid)

    def _prepare(self) -> None:
        assert not self.alive, f"process {self.pid} still runs"
        self._release()

    def _watch(self, pid: int) -> None:
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "guard", str(pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def alive(self) -> bool:
        """Whether the process was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id of the server itself.

        Raises:
            NotReady: it was never started.
        """
        if self._process is None:
            raise NotReady("the process was not started")
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """Exit status, negative for a signal; None while it runs or before it was started."""
        return None if self._process is None else self._process.poll()

    def signal(self, number: int) -> None:
        """Send a signal to the server process alone; nothing happens if it has ended."""
        if self._process is not None:
            self._process.send_signal(number)

    def kill9(self) -> None:
        """End the process and its group at once, as a crash would; return when they are gone.

        Descendants with a session of their own stay alive, as they would after a crash.
        """
        if self._process is not None:
            self._offspring |= descendants(self._process.pid)
            _kill_group(self._process.pid)
            self._process.wait()
        self._release()

    def terminate(self, timeout_s: float) -> int:
        """Ask the process to end (SIGTERM) and wait for it; return its exit status.

        Raises:
            NotReady: the process did not end within `timeout_s`, and was killed.
        """
        if self._process is None:
            raise NotReady("the process was not started")
        self._offspring |= descendants(self._process.pid)
        self._process.terminate()
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill9()
            raise NotReady(
                f"process {self._process.pid} ignored SIGTERM for {timeout_s:g} s and was killed\n"
                f"{self.log_tail()}"
            ) from None
        # Helper processes of the server, such as Erlang's, get no time of their own.
        _kill_group(self._process.pid)
        self._release()
        return status

    def close(self, grace_s: float = 10.0) -> None:
        """End the process and all its descendants.

        Descendants with a session of their own get `grace_s` to end by themselves; then they are killed.
        """
        self.kill9()
        deadline = time.monotonic() + grace_s
        while left := [one for one in self._offspring if _start_ticks(one[0]) == one[1]]:
            if time.monotonic() >= deadline:
                for pid, _ in left:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        self._offspring.clear()

    def assert_alive(self) -> None:
        """Raise `NotReady` with the end of the log if the process has ended by itself."""
        if not self.alive:
            raise NotReady(f"process ended with status {self.exit_status}\n{self.log_tail()}")

    def wait(self, holds: Callable[[], bool], what: str, timeout_s: float) -> None:
        """Wait as `wait_until` does, as long as the process runs.

        Raises:
            NotReady: the process has ended, or the condition did not hold in time; the text has the end of the log.
        """
        try:
            wait_until(lambda: not self.alive or holds(), what, timeout_s)
        except NotReady as late:
            raise NotReady(f"{late}\n{self.log_tail()}") from None
        self.assert_alive()

    def rss_bytes(self) -> int:
        """Return the present resident memory of the server process."""
        return _status_bytes(self.pid, "VmRSS")

    def rss_bytes_peak(self) -> int:
        """Return the largest resident memory of the server process since its start."""
        return _status_bytes(self.pid, "VmHWM")

    def cpu_seconds(self) -> float:
        """Return the processor time of all threads, user and system, since the start of the process."""
        return cpu_seconds(self.pid)

    def log_text(self) -> str:
        """Return the whole output of the process."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def log_tail(self, lines: int = _LOG_TAIL_LINES) -> str:
        """Return the last lines of the output, for an error message."""
        return "\n".join(line[:_LOG_LINE_CHARS] for line in self.log_text().splitlines()[-lines:])

    def _release(self) -> None:
        """End the guard of a process that has ended."""
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()
            self._guard = None


def cpu_seconds(pid: int) -> float:
    """Return the processor time of all threads of a process, user and system. Raises NotReady if it has ended."""
    # The number of a process's clock, as clock_getcpuclockid makes it; /proc/PID/stat counts in ticks of 10 ms.
    try:
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:
        raise NotReady(f"process {pid} has ended") from None


def descendants(pid: int) -> set[tuple[int, int]]:
    """Return the children of a process, their children and so on, as (process id, start time)."""
    children: dict[int, list[tuple[int, int]]] = {}
    for one, fields in _processes():
        children.setdefault(int(fields[1]), []).append((one, int(fields[19])))
    found: set[tuple[int, int]] = set()
    parents = [pid]
    while parents:
        for child in children.get(parents.pop(), []):
            found.add(child)
            parents.append(child[0])
    return found


def group_members(group: int) -> list[int]:
    """Return the ids of the processes in a process group, without zombies."""
    return [pid for pid, fields in _processes() if int(fields[2]) == group]


def _processes() -> Iterator[tuple[int, list[str]]]:
    """Yield the id of each process, and the fields of `stat` behind the name; without zombies."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            yield int(entry.name), fields


def _start_ticks(pid: int) -> int | None:
    """Return the start time of a process, which differs from that of a later one with the id; None if it ended."""
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat behind the name; none for an ended process or a zombie."""
    try:
        # The second field is the program's name in brackets, and the name may contain blanks.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
    return [] if fields[0] == "Z" else fields


def _kill_group(group: int) -> None:
    """Kill every process of a group; wait at most five seconds until none is left."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return
    deadline = time.monotonic() + 5.0
    while group_members(group) and time.monotonic() < deadline:
        time.sleep(0.01)


def _status_bytes(pid: int, key: str) -> int:
    """Read one size from /proc/PID/status, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    raise NotReady(f"process {pid} has no {key}: it has ended")
