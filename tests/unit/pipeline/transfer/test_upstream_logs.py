"""An outgoing log is asked for at its own node only."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from leveret.pipeline.transfer.upstream_logs import UpstreamLog
from leveret.pipeline.upstream.stream_client import UpstreamUnreachable
from leveret.wire.log_name import LABEL_PROPERTY, log_name

A, B = "rabbit@a#1", "rabbit@b#2"


@pytest.mark.parametrize(
    ("label", "answers", "is_there"), [(A, A, True), (A, B, False), (A, "", False), ("", "", True)]
)
def test_a_link_that_reaches_another_node_by_now_is_not_used(
    label: str, answers: str, is_there: bool
) -> None:
    client = SimpleNamespace(
        connection=SimpleNamespace(server_properties={LABEL_PROPERTY: answers} if answers else {})
    )
    link: Any = SimpleNamespace(client=lambda job: client, endpoint="127.0.0.1:5552")
    log = UpstreamLog(log_name("v", label), link, label, "site")
    job = cast(Any, None)
    if is_there:
        assert cast(Any, log.client(job)) is client
    else:
        with pytest.raises(UpstreamUnreachable, match="another node answers at 127"):
            log.client(job)
