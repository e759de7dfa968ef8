"""Whatever a site answers in the promised form, each page gets a document: no site spoils the view of the others."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from leveret.console.http.sessions import ConsoleSession
from leveret.console.http.views import show_actions, show_plots, show_safety, show_sites
from leveret.console.jobs.jobs import Jobs
from leveret.console.judging.history import last_rehearsals, past_events, recovered_rows
from leveret.console.settings import SiteAddress
from leveret.console.sites.documents import (
    AppliedSchema,
    NotUnderstood,
    PastOperation,
    StandbyDetails,
    read_document,
)
from leveret.console.sites.facts import OFTEN, SELDOM, SiteFacts
from leveret.console.sites.watch import SiteWatch, WatchPool, clock_ms

TEXTS = (
    "",
    "/",
    "q",
    "eu",
    "us.1",
    "us.1#7",
    "us.1/n@h#7",
    "orders",
    "downstream",
    "upstream",
    "leader",
    "follower",
)
HOSTILE = (
    "<b>",
    "\u202e",
    "x" * 300,
    "queues /: ",
    "remote-dc-replicate",
    "streaming",
    "connected",
    "member",
)
NUMBERS = (0, 1, -1, 9, 2**63 - 1, -(2**63), 1_700_000_000_000, 10**400)
KNOWN = {
    "operating_mode": ("downstream", "downstream", "upstream", ""),
    "role": ("leader", "follower", "fenced", ""),
    "virtual_host": ("orders", "/"),
    "vhost": ("orders", "/"),
    "upstream_cluster": (None, "eu.1"),
    "policy": ("osr", None),
}
"""Values without which a document means nothing to the others."""
PLAIN: SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.sampled_from((*TEXTS, *HOSTILE)), st.sampled_from(NUMBERS), st.just(0.5)
)
ANYTHING = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from((*TEXTS, "messages", "is_running")), inner),
    ),
    max_leaves=6,
)


def answers(kind: Any) -> SearchStrategy[Any]:
    """Documents of a kind as a site might send them, as far as JSON and the kind allow; wild where they allow it."""
    return _of(msgspec.inspect.type_info(kind))


def _field(field: msgspec.inspect.Field) -> SearchStrategy[Any]:
    return st.sampled_from(KNOWN[field.name]) if field.name in KNOWN else _of(field.type)


def _of(kind: msgspec.inspect.Type) -> SearchStrategy[Any]:
    match kind:
        case msgspec.inspect.StructType():
            needed = {field.encode_name: _field(field) for field in kind.fields if field.required}
            others = {field.encode_name: _field(field) for field in kind.fields if not field.required}
            return st.fixed_dictionaries(needed, optional=others)
        case msgspec.inspect.ListType() | msgspec.inspect.VarTupleType():
            return st.lists(_of(kind.item_type), max_size=3)
        case msgspec.inspect.DictType():
            return st.dictionaries(st.sampled_from(TEXTS), _of(kind.value_type), max_size=3)
        case msgspec.inspect.UnionType():
            return st.one_of(*map(_of, kind.types))
        case msgspec.inspect.StrType():
            return st.sampled_from((*TEXTS, *HOSTILE))
        case msgspec.inspect.BoolType():
            return st.booleans()
        case msgspec.inspect.NoneType():
            return st.none()
        case msgspec.inspect.IntType():
            return st.sampled_from(NUMBERS)
        case msgspec.inspect.FloatType():
            return st.sampled_from((0.0, -1.0, 0.5, 1e308, -1e308))
    return ANYTHING


SITES = ("eu", "us")
ANSWERS = {request.name: answers(request.kind) for request in (*OFTEN, *SELDOM)}


@st.composite
def sites(draw: st.DrawFn) -> list[SiteFacts]:
    """Two sites that answered to everything, or to some of it."""
    now_ms = clock_ms()
    found = []
    for name in SITES:
        facts = SiteFacts(name, "guest", ("administrator",))
        for request in (*OFTEN, *SELDOM):
            if draw(st.booleans()):
                answer = msgspec.json.encode(draw(ANSWERS[request.name]))
                with contextlib.suppress(NotUnderstood):
                    facts.take(request, read_document(answer, request.kind), now_ms)
        found.append(facts)
    return found


def is_json(document: Any) -> bool:
    return bool(msgspec.json.encode(document))


# The first example that fails says enough: the smallest one takes minutes.
@settings(phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(sites())
def test_every_page_is_a_document(found: list[SiteFacts]) -> None:
    async def scenario() -> None:
        pool = WatchPool()
        watches: dict[str, SiteWatch] = {}
        for facts in found:
            watch = pool.take(SiteAddress(facts.site, ("http://127.0.0.1:1",)), "guest", "guest")
            watch.facts = facts
            watch.samples.add(facts, clock_ms())
            watches[facts.site] = watch
        session = ConsoleSession("guest", watches, 0.0, 0.0)
        for view in (show_sites, show_safety, show_plots):
            assert is_json(view(session, {}))
        assert is_json(show_actions(session, Jobs(pool)))

    asyncio.run(scenario())


@given(answers(list[AppliedSchema]), answers(list[PastOperation]), st.lists(ANYTHING, max_size=2))
def test_every_past_is_a_time_line(applied: Any, operations: Any, summary: list[Any]) -> None:
    facts = SiteFacts("eu", "guest")
    deltas: list[AppliedSchema] = []
    known: list[PastOperation] = []
    with contextlib.suppress(NotUnderstood):
        deltas = read_document(msgspec.json.encode(applied), list[AppliedSchema])
        known = read_document(msgspec.json.encode(operations), list[PastOperation])
    events = past_events(facts, deltas, known, clock_ms())
    assert is_json([event._asdict() for event in events])
    assert is_json([state._asdict() for state in last_rehearsals(facts, known)])
    assert is_json(recovered_rows("eu", [row for row in summary if isinstance(row, dict)]))


def test_a_number_that_fits_into_no_float_is_refused_with_its_place() -> None:
    with pytest.raises(NotUnderstood, match=r"\$\.vhosts\[0\]\.lag_ms"):
        read_document(b'{"vhosts": [{"virtual_host": "/", "lag_ms": 1%s}]}' % (b"0" * 400), StandbyDetails)
