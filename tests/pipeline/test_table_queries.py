"""The five questions of docs/standby-tables.md, as they stand there, on an archive that a transfer made.

Asked by Spark of the archive, by Spark of exported files, and by pyarrow of these; all answer as the books do.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pika
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from leveret.pipeline.table.columns import MESSAGES
from leveret.pipeline.table.source import register
from leveret.testing.applications.applications import parameters
from leveret.testing.sites.standby_pair import StandbyPair

pytestmark = [pytest.mark.story, pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(900)]

PAGE = (Path(__file__).parents[2] / "docs" / "standby-tables.md").read_text(encoding="utf-8")
VHOST = "tenant-7"
PAUSE_S = 0.3
"""Between what the books tell apart by time; publisher, consumer and node have one clock."""


@dataclass
class Entry:
    """A message in the books."""

    queue: str
    routing_key: str
    body: bytes
    properties: dict[str, Any]
    phase: int
    state: str = "pending"
    reason: str | None = None
    settled_phase: int | None = None


@dataclass
class Ledger:
    """What applications did, in phases, and when each phase began."""

    entries: list[Entry] = field(default_factory=list)
    begins: list[datetime] = field(default_factory=list)

    def begin_phase(self) -> None:
        time.sleep(PAUSE_S)
        self.begins.append(datetime.now(UTC))
        time.sleep(PAUSE_S)

    def publish(self, channel: Any, queue: str, number: int, **properties: Any) -> None:
        body = b"%d " % number + b"x" * (number * 37 % 1500)
        channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2, **properties))
        self.entries.append(Entry(queue, queue, body, properties, len(self.begins)))

    def settle(self, queue: str, body: bytes, reason: str) -> Entry:
        [entry] = [each for each in self.entries if (each.queue, each.body) == (queue, body)]
        entry.state, entry.reason, entry.settled_phase = "settled", reason, len(self.begins)
        return entry


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandbyPair]:
    with StandbyPair(VHOST, tmp_path_factory.mktemp("sites")) as pair:
        pair.start()
        pair.replicate("osr", "^.*")
        pair.follow()
        yield pair


@pytest.fixture(scope="module")
def ledger(pair: StandbyPair) -> Ledger:
    """Messages that differ, a stream, dead letters, settled and pending ones, in three phases."""
    books = Ledger()
    with pika.BlockingConnection(parameters(pair.upstream.amqp_port, VHOST)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        for name, arguments in (
            ("orders", {"x-queue-type": "quorum"} | dead),
            ("retries", {}),
            ("ledger", {"x-queue-type": "stream"}),
            ("dead", {}),
        ):
            channel.queue_declare(name, durable=True, arguments=arguments)
        for number in range(40):
            headers = {"tenant": f"t{number % 3}", "n": number, "deep": {"list": [1, "two"]}}
            books.publish(channel, "orders", number, headers=headers, message_id=f"m{number}", priority=1)
        for number in range(15):
            books.publish(channel, "ledger", 100 + number, app_id="ledger")
        books.begin_phase()
        for number in range(20):
            books.publish(channel, "retries", 200 + number, type="retry", correlation_id="ä")
        for number in range(8):
            method, _, body = channel.basic_get("orders")
            if number % 4:
                channel.basic_ack(method.delivery_tag)
                books.settle("orders", body, "acked")
            else:
                channel.basic_reject(method.delivery_tag, requeue=False)
                books.settle("orders", body, "dead_lettered")
                books.entries.append(Entry("dead", "dead", body, {}, len(books.begins)))
        books.begin_phase()
        for _ in range(5):
            method, _, body = channel.basic_get("retries", auto_ack=True)
            books.settle("retries", body, "acked")
        channel.queue_purge("dead")
        for entry in [each for each in books.entries if each.queue == "dead"]:
            books.settle("dead", entry.body, "purged")
        books.begin_phase()
    pair.wait_transferred()
    return books


@pytest.fixture(scope="module")
def archive(pair: StandbyPair, ledger: Ledger) -> Path:
    return pair.downstream.data_dir / "standby"


@pytest.fixture(scope="module")
def exported(pair: StandbyPair, archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("exports") / "tenant-7"
    command = ["export_standby_data", "--format", "parquet", str(target), "--formatter", "json"]
    rows = json.loads(pair.downstream.ctl(*command, timeout_s=120).stdout)
    assert {row["queue"] for row in rows if row["queue"] != "beacon"} == {
        "orders",
        "retries",
        "ledger",
        "dead",
    }
    [orders] = [row for row in rows if row["queue"] == "orders"]
    assert orders == {"vhost": VHOST, "queue": "orders", "messages": 40, "pending": 32}
    document = json.loads((target / "_export.json").read_bytes())
    assert document["messages"] == sum(row["messages"] for row in rows)
    assert document["files"] == sorted(path.name for path in target.glob("*.parquet"))
    again = pair.downstream.ctl(*command, check=False, timeout_s=120)
    assert "has files already" in again.stderr
    assert again.returncode != 0
    return target


def own(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without the beacon by which the test knows that all has come."""
    return [row for row in rows if "beacon" not in (row.get("queue"), row.get("routing_key"))]


class Answers:
    """The answers to the five questions, by what the books call them."""

    def __init__(self, ledger: Ledger) -> None:
        self._entries = ledger.entries
        self.span = (ledger.begins[0], ledger.begins[1])

    def pending(self) -> Counter[str]:
        return Counter(each.queue for each in self._entries if each.state == "pending")

    def published(self) -> list[tuple[str, int]]:
        return sorted((each.queue, len(each.body)) for each in self._entries if each.phase == 1)

    def acked(self) -> Counter[str]:
        return Counter(
            each.queue for each in self._entries if (each.reason, each.settled_phase) == ("acked", 1)
        )

    def largest(self) -> list[int]:
        return sorted((len(each.body) for each in self._entries), reverse=True)[:10]

    def keys(self) -> Counter[str]:
        return Counter(each.routing_key for each in self._entries)


def in_time(text: str, span: tuple[datetime, datetime]) -> str:
    """A query of the page between these times."""
    first, last = (each.isoformat(timespec="milliseconds") for each in span)
    for hour in ("14:00", "14:03"):
        text = re.sub(f"2026-11-24[ T]{hour}:00Z", first, text)
    for hour in ("14:05", "14:04"):
        text = re.sub(f"2026-11-24[ T]{hour}:00Z", last, text)
    return text


@pytest.fixture(params=["archive", "export"])
def messages(
    request: pytest.FixtureRequest, spark: SparkSession, archive: Path, exported: Path
) -> Callable[[], DataFrame]:
    register(spark)
    columns = re.search(r'columns = "(.*)"', PAGE)
    assert columns is not None

    def load() -> DataFrame:
        if request.param == "export":
            return spark.read.parquet(str(exported))
        return spark.read.format("leveret").schema(columns[1]).load(str(archive))

    return load


def test_spark_answers_the_five_questions_as_the_books_do(
    spark: SparkSession, ledger: Ledger, messages: Callable[[], DataFrame]
) -> None:
    books = Answers(ledger)
    messages().createOrReplaceTempView("messages")
    queries = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
    pending, published, acked, largest, rates = (
        own([row.asDict() for row in spark.sql(in_time(query, books.span)).collect()]) for query in queries
    )
    assert {row["queue"]: row["messages"] for row in pending} == books.pending()
    assert all(row["oldest"] <= row["newest"] for row in pending)
    assert [row["oldest"] for row in pending] == sorted(row["oldest"] for row in pending)
    assert sorted((row["queue"], row["body_bytes"]) for row in published) == books.published()
    assert {row["queue"]: row["messages"] for row in acked} == books.acked()
    assert [row["body_bytes"] for row in largest] == books.largest()
    found: Counter[str] = Counter()
    for row in rates:
        found[row["routing_key"]] += round(row["messages_per_second"] * 60)
    assert found == books.keys()


def test_pyarrow_answers_the_five_questions_as_the_books_do(ledger: Ledger, exported: Path) -> None:
    books = Answers(ledger)
    [code] = re.findall(r"```python\n(import datetime.*?)```", PAGE, re.DOTALL)
    found: dict[str, Any] = {}
    exec(in_time(code.replace("/var/exports/tenant-7", str(exported)), books.span), found)
    assert {row["queue"]: row["count_all"] for row in own(found["pending"].to_pylist())} == books.pending()
    published = [(row["queue"], row["body_bytes"]) for row in own(found["published"].to_pylist())]
    assert sorted(published) == books.published()
    assert {row["queue"]: row["count_all"] for row in found["acked"].to_pylist()} == books.acked()
    assert found["largest"]["body_bytes"].to_pylist() == books.largest()
    keys: Counter[str] = Counter()
    for row in own(found["rates"].to_pylist()):
        keys[row["routing_key"]] += row["count_all"]
    assert keys == books.keys()


def test_each_message_has_its_properties_and_its_state(ledger: Ledger, exported: Path) -> None:
    table = pa.concat_tables([pq.read_table(path) for path in sorted(exported.glob("*.parquet"))])
    assert table.schema.names == MESSAGES.names
    rows = {(row["queue"], row["body"]): row for row in own(table.to_pylist())}
    assert len(rows) == len(ledger.entries)
    types = {"orders": "quorum", "ledger": "stream", "retries": "classic", "dead": "classic"}
    for entry in ledger.entries:
        row = rows[entry.queue, entry.body]
        assert (row["state"], row["settled_reason"]) == (entry.state, entry.reason), entry
        assert row["queue_type"] == types[entry.queue]
        assert (row["settled_at"] is not None) == (entry.state == "settled")
        for name, value in entry.properties.items():
            if name != "headers":
                assert row["message_type" if name == "type" else name] == value
        if "headers" in entry.properties:
            headers = dict(row["headers"])
            assert headers["tenant"]["text"] == entry.properties["headers"]["tenant"]
            assert headers["n"]["integer"] == entry.properties["headers"]["n"]
            assert json.loads(headers["deep"]["text"]) == {"list": [1, "two"]}
        if entry.queue == "dead":
            [death] = json.loads(dict(row["headers"])["x-death"]["text"])
            assert (death["queue"], death["reason"]) == ("orders", "rejected")


def test_as_of_a_moment_the_queues_are_as_the_books_have_them_then(
    spark: SparkSession, ledger: Ledger, archive: Path
) -> None:
    register(spark)
    for phase, moment in enumerate(ledger.begins):
        options = {"asOf": moment.isoformat(timespec="milliseconds"), "state": "pending", "columns": "queue"}
        rows = spark.read.format("leveret").options(**options).load(str(archive)).groupBy("queue").count()
        expected = Counter(
            each.queue
            for each in ledger.entries
            if each.phase <= phase and (each.settled_phase is None or each.settled_phase > phase)
        )
        assert {row["queue"]: row["count"] for row in rows.collect() if row["queue"] != "beacon"} == expected
