"""Counting transferred messages by vhost, exchange and routing key: reads two columns of every file.

By Arrow, in this process: it spares the JVM's start, and two dictionary columns are quickly read.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from leveret.model.errors import StorageError
from leveret.pipeline.decode import MESSAGE
from leveret.pipeline.manifest import Manifest

_COLUMNS = ["kind", "exchange", "routing_key"]


def count_messages(data_dir: Path) -> list[dict[str, Any]]:
    """Rows of vhost, exchange, routing_key and messages, sorted; octets that are no UTF-8 are replaced.

    Raises:
        StorageError: a file cannot be read.
    """
    counts: Counter[tuple[str, str, str]] = Counter()
    for file in Manifest(data_dir).files():
        path = data_dir / file.path
        try:
            table = pq.read_table(path, columns=_COLUMNS, memory_map=True, partitioning=None)
        except (OSError, pa.ArrowInvalid) as error:
            raise StorageError(f"{path}: {error}; restore the file from a copy") from error
        messages = table.filter(pc.equal(table.column("kind"), MESSAGE))
        grouped = messages.group_by(["exchange", "routing_key"]).aggregate([([], "count_all")])
        for row in grouped.to_pylist():
            key = (
                file.vhost,
                row["exchange"].decode(errors="replace"),
                row["routing_key"].decode(errors="replace"),
            )
            counts[key] += row["count_all"]
    return [
        {"vhost": vhost, "exchange": exchange, "routing_key": routing_key, "messages": messages}
        for (vhost, exchange, routing_key), messages in sorted(counts.items())
    ]
