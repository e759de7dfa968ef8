"""The operating system's figures for this process and its disk, under RabbitMQ's names.

Erlang's terms stand for the nearest equivalents: processes for threads, the garbage collector for Python's, the run
queue for the machine's runnable threads.
"""

from __future__ import annotations

import gc
import os
import resource
import threading
from typing import Any, Final

from leveret.management.node import ManagedNode
from leveret.management.peers import amqp_connections, other_connections
from leveret.runtime.process.proc import open_files, read_proc, used_memory_bytes
from leveret.runtime.sockets.connection_budget import process_sockets
from leveret.storage.disk import free_disk_bytes

NAMES: Final = (
    "mem_used",
    "fd_used",
    "sockets_used",
    "proc_used",
    "disk_free",
    "gc_num",
    "context_switches",
    "io_read_count",
    "io_read_bytes",
    "io_write_count",
    "io_write_bytes",
    "io_sync_count",
)
"""The names of the values of `sample`, in its order."""


def sample(node: ManagedNode) -> tuple[int, ...]:
    """The changing figures; cheap enough for every few seconds."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    done = transferred()
    return (
        used_memory_bytes(),
        open_files(),
        open_sockets(node),
        threading.active_count(),
        free_disk_bytes(node.data_dir) or 0,
        sum(generation["collections"] for generation in gc.get_stats()),
        usage.ru_nvcsw + usage.ru_nivcsw,
        done["syscr"],
        done["read_bytes"],
        done["syscw"],
        done["write_bytes"],
        node.commits.rounds,
    )


def limits(node: ManagedNode) -> dict[str, Any]:
    """The limits of the system and of the settings, the machine, and figures without rates."""
    budget = process_sockets().budget
    alarms = node.alarms
    commits = node.commits
    return {
        "io_sync_avg_time": commits.waited_s * 1000 / commits.rounds if commits.rounds else 0.0,
        "mem_limit": alarms.memory_limit_bytes,
        "mem_alarm": alarms.mem_alarm,
        "disk_free_limit": alarms.disk_limit_bytes,
        "disk_free_alarm": alarms.disk_free_alarm,
        "replicas_alarm": alarms.replicas_alarm,
        "fd_total": budget.limit,
        "sockets_total": sum(budget.shares.values()),
        "file_descriptor_alarm": process_sockets().is_short,
        "proc_total": _thread_limit(),
        "processors": len(os.sched_getaffinity(0)),
        "run_queue": runnable(),
        "os_pid": str(os.getpid()),
        "db_dir": str(node.data_dir),
        "mem_calculation_strategy": "rss",
    }


def open_sockets(node: ManagedNode) -> int:
    """The number of connected clients."""
    return len(amqp_connections(node)) + len(other_connections(node))


def transferred() -> dict[str, int]:
    """Reads and writes of this process: calls, and octets to or from the disk."""
    lines = read_proc("/proc/self/io").splitlines()
    return {name: int(count) for name, _, count in (line.partition(": ") for line in lines)}


def runnable() -> int:
    """The machine's threads that run or could run now."""
    return int(read_proc("/proc/loadavg").split()[3].partition("/")[0])


def _thread_limit() -> int:
    """The most threads that this process may have."""
    own = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    whole = int(read_proc("/proc/sys/kernel/threads-max"))
    return whole if own == resource.RLIM_INFINITY else min(own, whole)
