"""`/api/replication/plots`: the values of the console's plots, from each node's own history.

    GET ?age_s=3600&step_s=60    {"names": [...], "nodes": [{"node", "rows": [[at_ms, value, ...], ...]}, ...]}

An unknown value is null. Unlike in RabbitMQ's samples, moments without data have no row.
"""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from leveret.management.rates.history import SAMPLES_MAX, Range
from leveret.management.rates.plots import NAMES
from leveret.management.request.auth import Requirement
from leveret.management.request.call import Call, resource
from leveret.management.request.other_nodes import documents_of_others
from leveret.management.request.replies import json_reply
from leveret.model.errors import InvalidCommand
from leveret.model.whole_number import whole_number

_AGE_MAX_S: Final = 7 * 86_400


async def show_plots(call: Call) -> Response:
    """The histories of all nodes that answer."""
    age_s, step_s = _seconds(call, "age_s", 3600), _seconds(call, "step_s", 60)
    if age_s // step_s > SAMPLES_MAX:
        raise InvalidCommand(f"age_s, step_s: at most {SAMPLES_MAX} samples are given")
    vhosts = [name for name in call.broker.topologies if call.caller.knows(name)]
    own = {
        "node": call.cluster.name,
        "rows": call.rates.plots(vhosts, Range(age_s * 1000, step_s * 1000)),
    }
    others = [node for document in await documents_of_others(call) for node in document["nodes"]]
    return json_reply({"names": NAMES, "nodes": [own, *others]})


def _seconds(call: Call, name: str, default: int) -> int:
    text = call.query.get(name, str(default))
    seconds = whole_number(text, least=1, most=_AGE_MAX_S)
    if seconds is None:
        raise InvalidCommand(f"{name}: '{text[:20]}' is no number of seconds from 1 to {_AGE_MAX_S}")
    return seconds


ROUTES = [resource("/api/replication/plots", need=Requirement.MONITORING, GET=show_plots)]
