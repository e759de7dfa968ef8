"""The five questions of docs/standby-tables.md, asked of a generated archive by Spark.

    python -m bench.archive_queries DIR

Prints, in JSON, the seconds of each from the question to its last row, and the number of its rows. Spark has started.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from bench.archives import BEGIN_MS, FILE_MS, VHOST
from leveret.pipeline.jobs.job import SparkSettings
from leveret.pipeline.spark.session import start_session
from leveret.pipeline.table.source import register

COLUMNS: Final = (
    "vhost string, queue string, timestamp timestamp, routing_key string, body_bytes long, state string, "
    "settled_at timestamp, settled_reason string"
)
SPAN_FILES: Final = 20
"""The files whose times the questions about a span name."""


def _moment(file: int) -> str:
    return f"{datetime.fromtimestamp((BEGIN_MS + file * FILE_MS) / 1000, UTC):%Y-%m-%d %H:%M:%SZ}"


_FROM: Final = _moment(0)
_TO: Final = _moment(SPAN_FILES)
QUERIES: Final = {
    "pending": (
        "SELECT vhost, queue, count(*) AS messages, min(timestamp) AS oldest, max(timestamp) AS newest "
        "FROM messages WHERE state = 'pending' GROUP BY vhost, queue ORDER BY oldest"
    ),
    "published": (
        f"SELECT queue, routing_key, timestamp, body_bytes FROM messages WHERE vhost = '{VHOST}' "
        f"AND timestamp >= '{_FROM}' AND timestamp < '{_TO}' ORDER BY timestamp, queue LIMIT 1000"
    ),
    "acked": (
        "SELECT vhost, queue, count(*) AS messages FROM messages WHERE settled_reason = 'acked' "
        f"AND settled_at >= '{_FROM}' AND settled_at < '{_TO}' GROUP BY vhost, queue ORDER BY vhost, queue"
    ),
    "largest": (
        "SELECT vhost, queue, routing_key, timestamp, body_bytes FROM messages "
        "ORDER BY body_bytes DESC, vhost, queue LIMIT 10"
    ),
    "rates": (
        "SELECT vhost, routing_key, date_trunc('minute', timestamp) AS minute, count(*) / 60 AS messages_per_second "
        "FROM messages GROUP BY ALL ORDER BY vhost, routing_key, minute"
    ),
}


def ask(place: Path) -> dict[str, tuple[float, int]]:
    """Ask all questions; return seconds and rows of each."""
    found: dict[str, tuple[float, int]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        spark = start_session("queries", SparkSettings(), Path(scratch))
        register(spark)
        table = spark.read.format("leveret").schema(COLUMNS).load(str(place))
        table.createOrReplaceTempView("messages")
        for name, query in QUERIES.items():
            begun = time.monotonic()
            rows = spark.sql(query).collect()
            found[name] = time.monotonic() - begun, len(rows)
        spark.stop()
    return found


if __name__ == "__main__":
    print(json.dumps(ask(Path(sys.argv[1]))))
