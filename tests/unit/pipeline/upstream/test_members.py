"""An upstream cluster without Spark: who its nodes are, what is transferred from each, and what is told of others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from leveret.model.errors import LedElsewhere, NotFound
from leveret.pipeline.archive.manifest import Manifest
from leveret.pipeline.jobs.job import LoginCredentials, TransferJob
from leveret.pipeline.jobs.progress import Event, Inbox
from leveret.pipeline.transfer.sink import StoreWriter
from leveret.pipeline.transfer.source import TransferOptions, UpstreamReader
from leveret.pipeline.upstream import link as links_module
from leveret.testing.network.ports import wait_until
from leveret.testing.sites.standby_upstream import StandbyUpstream, stored_message
from leveret.wire.log_name import ABSENT, log_name

LIMIT: Any = None

pytestmark = pytest.mark.usefixtures("impatient")


class FakeSite:
    """A cluster as one of its nodes tells it."""

    def __init__(self, cluster_id: str, label: str, places: dict[str, tuple[str, int] | None]) -> None:
        self.cluster_id = cluster_id
        self.label = label
        self.places = places
        self.missed: set[str] = set()

    def labels(self) -> list[str]:
        return sorted(self.places)

    def place(self, vhost: str, label: str, *, tls: bool) -> tuple[str, int] | None:
        if label in self.missed:
            raise LedElsewhere(label)
        if self.places[label] is None:
            raise NotFound(label)
        return None if label == self.label else self.places[label]


class Nodes:
    """Nodes of one cluster, or of several, each serving a log with ten records."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.places: dict[str, tuple[str, int] | None] = {}
        self.upstreams: dict[str, StandbyUpstream] = {}
        self.sites: dict[str, FakeSite] = {}
        self._servers: dict[str, ExitStack] = {}

    def add(self, label: str, cluster_id: str = "one") -> int:
        upstream = StandbyUpstream()
        upstream.publish("/", f"q-{label}", [stored_message(b"m")] * 10)
        upstream.logs["/"].log_id = 1 + len(self.upstreams)
        site = FakeSite(cluster_id, label, self.places)
        upstream.host.site = site
        self._servers[label] = self._stack.enter_context(ExitStack())
        port = self._servers[label].enter_context(upstream.serving())
        upstream.host.advertised_port = port
        self.places[label] = ("127.0.0.1", port)
        self.upstreams[label], self.sites[label] = upstream, site
        return port

    def end(self, label: str) -> None:
        """End a node, as its site hears at once."""
        self._servers[label].close()
        self.places[label] = None


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    with ExitStack() as stack:
        yield Nodes(stack)


def options_of(data_dir: Path, inbox: Inbox, *ports: int) -> TransferOptions:
    job = TransferJob(
        data_dir=str(data_dir),
        reference="eu.2",
        endpoints=[f"127.0.0.1:{port}" for port in ports],
        credentials=LoginCredentials(username="standby", password="secret"),
        vhosts=["/"],
    )
    return TransferOptions(job=job, inbox=inbox.address, cores=2)


def transfer(options: TransferOptions) -> UpstreamReader:
    """Begin, and store what there is."""
    reader, writer = UpstreamReader(options), StoreWriter(options)
    begin = reader.latestOffset({}, LIMIT)
    end = reader.latestOffset(begin, LIMIT)
    writer.commit([writer.write(reader.read(each)) for each in reader.partitions(begin, end)], 0)
    return reader


def links(inbox: Inbox) -> dict[str, Event]:
    return {each["log"]: each for each in inbox.wait(0.2) if each["event"] == "link"}


def test_one_endpoint_is_enough_to_transfer_what_every_node_serves(tmp_path: Path, nodes: Nodes) -> None:
    first = nodes.add("a@x#1")
    nodes.add("b@x#2")
    with Inbox() as inbox:
        transfer(options_of(tmp_path, inbox, first))
    logs = {log_name("/", label): 10 for label in ("a@x#1", "b@x#2")}
    assert Manifest(tmp_path).next_by_log == logs
    assert sorted(part.queue for file in Manifest(tmp_path).files() for part in file.queues) == [
        "q-a@x#1",
        "q-b@x#2",
    ]


def test_the_site_stays_within_reach_when_the_only_named_node_is_lost(tmp_path: Path, nodes: Nodes) -> None:
    first, second = nodes.add("a@x#1"), nodes.add("b@x#2")
    with Inbox() as inbox:
        options = options_of(tmp_path, inbox, first)
        reader = transfer(options)
        position = {log_name("/", label): 10 for label in ("a@x#1", "b@x#2")}
        nodes.end("a@x#1")

        def asked() -> str:
            assert reader.latestOffset(position, LIMIT) == position
            return links_module.link_of(options.job, "/").endpoint

        wait_until(lambda: asked() == f"127.0.0.1:{second}", "the other node to be asked for the members", 20)
        nodes.upstreams["b@x#2"].publish("/", "later", [stored_message(b"m")] * 5)
        expected = position | {log_name("/", "b@x#2"): 15}
        wait_until(lambda: reader.latestOffset(position, LIMIT) == expected, "its log to be read", 20)


def test_a_node_that_does_not_run_is_missed_only_while_it_leads(tmp_path: Path, nodes: Nodes) -> None:
    first = nodes.add("a@x#1")
    nodes.add("b@x#2")
    with Inbox() as inbox:
        reader = transfer(options_of(tmp_path, inbox, first))
        position = {log_name("/", label): 10 for label in ("a@x#1", "b@x#2")}
        nodes.places["b@x#2"] = None
        gone = log_name("/", "b@x#2")
        site = nodes.sites["a@x#1"]

        def standing() -> tuple[str, bool]:
            assert reader.latestOffset(position, LIMIT) == position
            found = links(inbox).get(gone, {})
            return found.get("state", ""), "leads queues" in found.get("error", "")

        site.missed = {"b@x#2"}
        wait_until(lambda: standing() == ("connecting", True), "its queues to be missed", 10)
        site.missed = set()
        wait_until(lambda: standing() == (ABSENT, False), "its queues to be led elsewhere", 10)


def test_endpoints_of_two_clusters_are_told_and_nothing_is_transferred(tmp_path: Path, nodes: Nodes) -> None:
    one, other = nodes.add("a@x#1"), nodes.add("b@y#2", "two")
    with Inbox() as inbox:
        reader = UpstreamReader(options_of(tmp_path, inbox, one, other))
        assert reader.latestOffset({}, LIMIT) == {}
        [link] = links(inbox).values()
    assert link["state"] == "recover"
    assert "are of several sites" in link["error"]
    assert "of cluster one" in link["error"]
    assert "of cluster two" in link["error"]


def test_a_cluster_goes_on_with_the_log_of_the_single_node_that_founded_it(
    tmp_path: Path, nodes: Nodes
) -> None:
    first = nodes.add("a@x#1")
    founder = nodes.upstreams["a@x#1"]
    founder.host.site = None
    with Inbox() as inbox:
        transfer(options_of(tmp_path, inbox, first))
        founder.host.site = nodes.sites["a@x#1"]
        founder.publish("/", "later", [stored_message(b"m")] * 5)
        nodes.add("b@x#2")
        for link in links_module._links.values():
            # The node was started anew.
            link.close()
        transfer(options_of(tmp_path, inbox, first))
    assert Manifest(tmp_path).next_by_log == {"/": 15, log_name("/", "b@x#2"): 10}
