"""`python -m tests.suites.languages.world SUITE BROKER FOLDER ROOM`: run a suite beside a fresh broker, in a world.

A world is a network without a way to any other one (testing.sites.network_hosts), so the broker has the usual ports of
loopback, and nothing that a suite does leaves the machine. The results are in ROOM/results.jsonl, the broker's log
in ROOM/broker.log, and what the suite writes in ROOM/output.log.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Final

from leveret.testing.sites.cluster_site import ClusterSite
from leveret.testing.sites.mirror_cluster import MirrorCluster
from leveret.testing.sites.network_hosts import Network
from leveret.testing.sites.rabbitmq_cluster import RabbitCluster
from tests.suites.brokers import RABBITMQ, Certificates, usual
from tests.suites.languages.catalogue import FOREIGN, ForeignSuite, Place, Step
from tests.suites.run import Ended, Results

CTL: Final = Path(__file__).parent / "inside" / "ctl.py"


Operate = Callable[[list[str]], tuple[int, str, str]]


class OneNode:
    """A broker of one node: `stop-node`, `start-node`, and the commands of the broker's own tool."""

    def __init__(self, broker: str, certificates: Certificates) -> None:
        self.node = usual(broker, certificates)
        self.urls = "amqp://guest:guest@127.0.0.1:5672"

    def operate(self, arguments: list[str]) -> tuple[int, str, str]:
        """Carry out a command; return its status, output and errors."""
        if arguments == ["stop-node"]:
            self.node.stop()
        elif arguments == ["start-node"]:
            self.node.start()
        else:
            done = self.node.ctl(*arguments, check=False)
            return done.returncode, done.stdout, done.stderr
        return 0, "", ""

    def logs(self) -> str:
        """The broker's log."""
        return self.node.log_text()


class ThreeNodes:
    """A cluster whose classic queues are mirrored: `kill-leader QUEUE`, `revive`."""

    def __init__(self, broker: str, room: Path) -> None:
        folder = room / "cluster"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        self.node: MirrorCluster = RabbitCluster() if broker == RABBITMQ else ClusterSite(folder)
        self.urls = " ".join(f"amqp://guest:guest@127.0.0.1:{each.amqp_port}" for each in self.node.nodes)

    def operate(self, arguments: list[str]) -> tuple[int, str, str]:
        """Carry out a command; return its status, output and errors."""
        match arguments:
            case ["mirror"]:
                self.node.set_policy("all", ".*", {"ha-mode": "all", "ha-sync-mode": "automatic"})
            case ["kill-leader", queue]:
                leader = self.node.queues(self.node.running[0])[queue].leader
                next(each for each in self.node.running if each.node == leader).kill9()
            case ["revive"]:
                for each in self.node.nodes:
                    if not each.alive:
                        each.launch()
                        each.wait_ready()
            case _:
                return 64, "", f"no command {arguments}"
        return 0, "", ""

    def logs(self) -> str:
        """The ends of the nodes' logs."""
        return "\n\n".join(each.log_tail() for each in self.node.nodes)


def serve_operator(operate: Operate, room: Path) -> Path:
    """Let a program operate the broker for the suite; return the program."""
    # Not in the room: the path of a socket has 107 octets at most.
    door = Path(tempfile.mkdtemp(prefix="suite-")) / "operator"
    listener = Listener(str(door), "AF_UNIX")

    def serve() -> None:
        while True:
            with listener.accept() as caller:
                try:
                    caller.send(operate(caller.recv()))
                except Exception as error:
                    caller.send((70, "", repr(error)))

    threading.Thread(target=serve, daemon=True).start()
    program = room / "ctl"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{CTL}" "{door}" "$@"\n')
    program.chmod(0o755)
    return program


def run_step(step: Step, log: Path) -> Results:
    """Run one program of a suite to its end, or to its time; return the results."""
    output = step.output or log.with_name("step.out")
    output.unlink(missing_ok=True)
    with log.open("ab") as said, output.open("wb") if step.output is None else log.open("ab") as out:
        try:
            status: int | None = subprocess.run(
                [str(part) for part in step.argv],
                cwd=step.cwd,
                env={**os.environ, **step.env},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT if step.merged else said,
                timeout=step.timeout_s,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            status = None
    text = output.read_text(errors="replace") if output.exists() else ""
    if step.output is None:
        with log.open("a") as said_text:
            said_text.write(text)
    if step.read is not None:
        return {f"{step.name}{test}": ended for test, ended in step.read(text).items()}
    why = "" if status == 0 else f"status {status}: {text}"[-2000:]
    return {step.name: Ended("passed" if status == 0 else "failed", why)}


def run(suite: ForeignSuite, broker: str, certificates: Certificates, folder: Path, room: Path) -> None:
    """Run all steps of a suite beside a fresh broker; write each step's results as it ends."""
    log = room / "output.log"
    log.unlink(missing_ok=True)
    stage = ThreeNodes(broker, room) if suite.in_cluster else OneNode(broker, certificates)
    with stage.node:
        try:
            ctl = serve_operator(stage.operate, room)
            place = Place(folder, room, ctl, certificates, stage.urls)
            for arguments in suite.operated:
                subprocess.run([ctl, *arguments], check=True, capture_output=True)
            with (room / "results.jsonl").open("w") as results:
                for step in suite.steps(place):
                    for test, ended in run_step(replace(step, cwd=step.cwd or folder), log).items():
                        row = {"test": test, "outcome": ended.outcome, "text": ended.text}
                        results.write(json.dumps(row) + "\n")
                        results.flush()
        finally:
            (room / "broker.log").write_text(stage.logs())


def main() -> int:
    """Do what the command line says; return the exit status."""
    name, broker, folder, room, *paths = sys.argv[1:]
    with Network():
        run(FOREIGN[name], broker, Certificates(*map(Path, paths)), Path(folder), Path(room))
    return 0


if __name__ == "__main__":
    sys.exit(main())
