"""The limits of the load generator, measured on a sink, which is a broker without any work.

If a rate here is not well above those of the brokers, the rows measure the generator instead.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Final, Self

from bench.load import ConsumeJob, PublishJob
from bench.workers import QUEUE, ROOT, Throughput, publish_only, together
from leveret.testing.servers.process import Server, cpu_seconds

RATE_MIN: Final = 300_000


class SinkNode(Server):
    """The sink as a process, with the part of bench.contenders.Node that the workers use."""

    amqp_port: int
    management_port: int = 0
    stream_port: int = 0

    def start(self) -> Self:
        """Start the sink and learn its port."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.sink"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.amqp_port = int(self._process.stdout.readline())
        return self

    def stop(self) -> int:
        """End the sink by ending its input."""
        self._process.communicate()
        return self._process.returncode

    def kill9(self) -> None:
        """End the sink at once."""
        self._process.kill()
        self._process.communicate()

    def close(self) -> None:
        """End the sink; it keeps no data."""
        self.kill9()

    def rss_bytes(self) -> int:
        """Not implemented: no worker measures the memory of a sink."""
        raise NotImplementedError

    def cpu_seconds(self) -> float:
        """Return the processor time of the sink since its start."""
        return cpu_seconds(self._process.pid)


def run(seconds: float, warmup_s: float) -> dict[str, Throughput]:
    """Run loads on the sink as on a broker; return each run's outcome by name."""
    with SinkNode() as node:
        port = node.amqp_port
        publish = PublishJob(port, QUEUE, seconds=seconds)
        small = PublishJob(port, QUEUE, body_bytes=16, persistent=False, window=0, seconds=seconds)
        consume = ConsumeJob(port, QUEUE)
        return {
            "publish, 1000 B, window 1000": publish_only(node, publish, warmup_s),
            "publish and consume, 1000 B, window 1000": together(node, publish, consume, warmup_s),
            "publish, 16 B, no confirms": publish_only(node, small, warmup_s),
            "publish and consume, 16 B, no confirms": together(node, small, consume, warmup_s),
        }


def main(seconds: float, warmup_s: float) -> int:
    """Print the generator's rates; return 1 if one is too low for measurements."""
    outcomes = run(seconds, warmup_s)
    for name, outcome in outcomes.items():
        generator = f"{outcome.load_cpu_us:.2f} us of the generator a message"
        print(f"{name:42} {outcome.rate:12,.0f} msg/s  {generator}")
    slow = [name for name, outcome in outcomes.items() if outcome.rate < RATE_MIN]
    for name in slow:
        print(f"too slow to measure with, under {RATE_MIN:,}/s: {name}", file=sys.stderr)
    return 1 if slow else 0
