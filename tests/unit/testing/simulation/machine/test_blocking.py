"""Blocking code in virtual time: it waits in turns, and a killed process runs no more code."""

from __future__ import annotations

import asyncio
import socket as real
import struct
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from greenlet import GreenletExit

from leveret.testing.simulation.machine.blocking import (
    BlockingPool,
    BlockingProcess,
    BlockingQueue,
    BlockingThread,
    sleep,
    step,
    wait,
)
from leveret.testing.simulation.machine.blocking_socket import connected
from leveret.testing.simulation.machine.loop import VirtualLoop
from leveret.testing.simulation.machine.network import SimulatedNetwork
from leveret.testing.simulation.machine.process import SimulatedProcess


class Echo(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data.upper())


def run(work: Callable[[BlockingProcess], None], seconds: float = 100.0) -> VirtualLoop:
    """Run a function in a thread of a new process for a time; return the loop."""
    loop = VirtualLoop(Random(1))
    network = SimulatedNetwork(loop, Random(2))

    async def play() -> None:
        server = SimulatedProcess("server")
        server.context().run(network.listen, 1, Echo)
        process = BlockingProcess(SimulatedProcess("host"), "worker")
        thread = BlockingThread(lambda: work(process), process)
        await asyncio.sleep(seconds)
        if process.is_alive:
            assert thread.done()
            thread.result()
        process.kill()
        process.discard()

    loop.run_until_complete(play())
    return loop


def test_a_thread_sleeps_in_virtual_time_beside_others() -> None:
    said: list[str] = []

    def say(word: str, seconds: float) -> str:
        sleep(seconds)
        said.append(word)
        return word

    def work(process: BlockingProcess) -> None:
        with BlockingPool() as pool:
            slow, fast = pool.submit(say, "slow", 5), pool.submit(say, "fast", 2)
            assert (slow.result(), fast.result()) == ("slow", "fast")
            assert list(pool.map(say, ["b", "a"], [2.0, 1.0])) == ["b", "a"]

    run(work)
    assert said == ["fast", "slow", "a", "b"]


def test_a_queue_brings_items_in_order_to_the_thread_that_waits() -> None:
    found: list[int] = []

    def work(process: BlockingProcess) -> None:
        queue = BlockingQueue()
        taking = BlockingThread(lambda: found.extend(queue.get() for _ in range(3)))
        for number in range(3):
            queue.put(number)
            sleep(1)
        taking.result()
        assert queue.empty()

    run(work)
    assert found == [0, 1, 2]


def test_a_killed_process_runs_no_more_code_whatever_it_waits_for() -> None:
    done: list[str] = []

    def work(process: BlockingProcess) -> None:
        process.last_step = 3
        process.on_end = lambda status: done.append(f"ended with {status}")
        for number in range(10):
            step()
            done.append(f"step {number}")

    run(work)
    assert done == ["step 0", "step 1", "ended with -9"]


def test_a_socket_brings_what_was_sent_and_its_timeout_and_refusal_are_those_of_sockets() -> None:
    def work(process: BlockingProcess) -> None:
        with pytest.raises(ConnectionRefusedError):
            connected(("127.0.0.1", 2), 5.0)
        socket = connected(("127.0.0.1", 1), 5.0)
        socket.sendall(b"abc")
        room = bytearray(3)
        assert socket.recv_into(memoryview(room), 0, real.MSG_WAITALL) == 3
        assert room == b"ABC"
        socket.setsockopt(real.SOL_SOCKET, real.SO_RCVTIMEO, struct.pack("@ll", 2, 0))
        with pytest.raises(BlockingIOError):
            socket.recv_into(memoryview(room))
        socket.close()
        assert socket.fileno() == -1

    run(work)


def test_the_wait_for_a_future_ends_with_its_timeout() -> None:
    def work(process: BlockingProcess) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        began_s = asyncio.get_running_loop().time()
        assert not wait(future, 3.0)
        assert asyncio.get_running_loop().time() - began_s == pytest.approx(3.0)

    run(work)


def test_a_thread_that_is_unwound_after_the_loop_has_ended_waits_no_more() -> None:
    left: list[object] = []

    def linger(process: BlockingProcess) -> None:
        try:
            sleep(1000)
        finally:
            for wait_again in (lambda: sleep(1), step, BlockingQueue().get):
                try:
                    wait_again()
                except BaseException as end:
                    left.append(type(end))

    process = BlockingProcess(SimulatedProcess("host"), "worker")

    async def play() -> None:
        BlockingThread(lambda: linger(process), process)
        await asyncio.sleep(1)
        process.kill()

    VirtualLoop(Random(1)).run_until_complete(play())
    process.discard()
    assert left == [GreenletExit] * 3
