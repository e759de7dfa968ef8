"""The HTTP API's answers have the fields and types of RabbitMQ's, but for those that are named here.

`http_scene` plays the same scene on both brokers; what RabbitMQ answered is recorded in `http_shapes.txt`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tests.conformance.brokers import RABBITMQ
from tests.conformance.http_scene import RECORDED

NOT_TOLD: Final = frozenset(
    {
        # Of Erlang, its processes and its database.
        "backing_queue_status",
        "cowboy_opts",
        "garbage_collection",
        "gc_bytes_reclaimed",
        "metrics_gc_queue_length",
        "mnesia_disk_tx_count",
        "mnesia_ram_tx_count",
        "ra_open_file_metrics",
        "recoverable_slaves",
        "reductions",
        "ssl_opts",
        # Of RabbitMQ's message store; here all is in logs, and what is in memory is a window of them.
        "disk_reads",
        "disk_writes",
        "io_read_avg_time",
        "io_reopen_count",
        "io_seek_avg_time",
        "io_seek_count",
        "io_sync_avg_time",
        "io_sync_count",
        "io_write_avg_time",
        "msg_store_read_count",
        "msg_store_write_count",
        "queue_index_read_count",
        "queue_index_write_count",
        # Not counted: the frames of a connection.
        "recv_cnt",
        "send_cnt",
    }
)
"""Fields of RabbitMQ, and their rates, that Leveret has nothing to say about."""

MORE: Final = frozenset(
    {
        # Of RabbitMQ 3.13, whose API is followed; the recorded one is older.
        "being_drained",
        "default_queue_type",
        "is_op_policy_updating_enabled",
        "metadata",
        "original_cluster_name",
        "original_vhost_name",
        "rabbitmq_definition_format",
        # LavinMQ's.
        "followers",
        # Leveret's own.
        "file_descriptor_alarm",
        "python_full_version",
        "python_version",
        "replicas_alarm",
    }
)
"""Fields that Leveret has and the recorded RabbitMQ has not."""

ODD: Final = frozenset(
    {
        # Nobody remembers who declared an exchange.
        ("exchanges", "user_who_performed_action"),
        ("exchanges/scene", "user_who_performed_action"),
        ("exchanges/scene/e1", "user_who_performed_action"),
        # The definitions of one vhost name no vhost anywhere, and say which product made them.
        ("definitions/scene", "parameters.vhost"),
        ("definitions/scene", "policies.vhost"),
        ("definitions/scene", "product_name"),
        ("definitions/scene", "product_version"),
        ("definitions/scene", "rabbitmq_version"),
        # RabbitMQ 3.10 forgets these when it exports over HTTP; 3.13 does not.
        ("definitions", "vhosts.description"),
        ("definitions", "vhosts.tags"),
        # RabbitMQ keeps its cluster's identity among the global parameters.
        ("definitions", "global_parameters.value"),
        ("global-parameters", "value"),
        # There is no Erlang, no plugin, and no page that could be extended.
        ("overview", "erlang_version"),
        ("overview", "erlang_full_version"),
        ("extensions", ""),
        ("extensions", "javascript"),
        ("feature-flags", "doc_url"),
        ("nodes", "enabled_plugins"),
        ("nodes/$node", "enabled_plugins"),
        # Which files a node has depends on how it was started.
        ("nodes", "config_files"),
        ("nodes", "log_files"),
        ("nodes/$node", "config_files"),
        ("nodes/$node", "log_files"),
    }
)
"""Single differences: path and place."""

CHANGING: Final = frozenset({"channel_closed", "connection_closed", "contexts", "socket_opts"})
"""What RabbitMQ 3.10 tells some time after its start, and options that depend on the listener."""

OF_THE_MOMENT: Final = frozenset({"applications", "idle_since"})
"""What one RabbitMQ tells and the next does not: which of Erlang's applications run, one at times with no
description, and since when a queue is idle."""


def test_the_api_tells_what_rabbitmqs_tells(scene: tuple[str, list[str]]) -> None:
    kind, lines = scene
    recorded = RECORDED.read_text().splitlines()
    if kind == RABBITMQ:
        assert _steady(lines) == _steady(recorded)
    else:
        assert _common(recorded) - set(lines) == set()
        assert _common(lines) - set(recorded) == set()


def _common(lines: Iterable[str]) -> set[str]:
    """Lines without what differs on purpose."""
    return {line for line in lines if not _differs(line)}


def _differs(line: str) -> bool:
    path, place = _place_of(line)
    fields = {word.removesuffix("_details") for word in place.split(".")}
    return bool(fields & (NOT_TOLD | MORE | CHANGING)) or (path, place) in ODD


def _steady(lines: Iterable[str]) -> list[str]:
    """What RabbitMQ tells every time: some of its statistics come and go."""
    return [
        line
        for line in lines
        if "_details" not in line and not set(_place_of(line)[1].split(".")) & (CHANGING | OF_THE_MOMENT)
    ]


def _place_of(line: str) -> tuple[str, str]:
    """Path and place of `200 PATH  PLACE TYPE`."""
    asked, _, rest = line.partition("  ")
    return asked.partition(" ")[2], rest.partition(" ")[0].replace("[]", "").strip(".")
