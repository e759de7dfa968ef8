"""What an operator may have a site do, where it is offered, what it will do in numbers, and the request. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from leveret.console.judging.links import is_downstream
from leveret.console.sites.facts import SiteFacts
from leveret.model.errors import InvalidCommand

TEXT_CHARACTERS_MAX: Final = 2000
ADMINISTRATOR: Final = "administrator"
Given = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ActionOption:
    """What may be chosen; `kind` is flag, text, moment, names (separated by commas) or password."""

    name: str
    kind: str
    label: str
    is_needed: bool = False


@dataclass(frozen=True, slots=True)
class SiteAction:
    """One thing that can be done.

    Attributes:
        refusal: why it makes no sense at a site; empty where it does.
        forecast: what it will do, in sentences with numbers, before it does.
        body: the body of the request, from what was chosen.
        is_final: nothing takes it back; so the name of the site is to be typed.
        is_report: it answers with a line for each step; else with one document.
        measured: what the site reports of it while it runs, done and total, in `unit`; None: nothing.
        queue_path: of one that is answered when it has begun: the queue that tells how far it is.
    """

    name: str
    title: str
    path: Callable[[Given], str]
    refusal: Callable[[SiteFacts], str]
    forecast: Callable[[SiteFacts], list[str]]
    body: Callable[[Given], dict[str, Any]]
    options: tuple[ActionOption, ...] = ()
    is_final: bool = False
    is_report: bool = False
    measured: Callable[[SiteFacts], tuple[int, int] | None] = lambda _: None
    unit: str = "messages"
    queue_path: Callable[[Given], str] | None = None


def check_given(action: SiteAction, given: Given) -> dict[str, Any]:
    """What was chosen, by the names and kinds of the action's options; what is empty is left out.

    Raises:
        InvalidCommand: an option is unknown, of another kind, or missing.
    """
    options = {option.name: option for option in action.options}
    chosen: dict[str, Any] = {}
    for name, value in given.items():
        option = options.get(name)
        if option is None:
            raise InvalidCommand(f"{action.title} has no option '{name[:50]}'")
        kind = bool if option.kind == "flag" else str
        if not isinstance(value, kind) or len(str(value)) > TEXT_CHARACTERS_MAX:
            raise InvalidCommand(f"{option.label}: this is no {option.kind}")
        if value:
            chosen[name] = value
    for option in action.options:
        if option.is_needed and option.name not in chosen:
            raise InvalidCommand(f"{option.label}: say which")
    return chosen


def names_in(text: str) -> list[str]:
    """The names of a list with commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


# -- the requests -----------------------------------------------------------------------------


def _recovery(given: Given) -> dict[str, Any]:
    body: dict[str, Any] = {name: True for name in ("start_from_scratch", "all_available") if given.get(name)}
    body |= {name: names_in(given[name]) for name in ("exclude_virtual_hosts", "queues") if given.get(name)}
    if given.get("as_of"):
        body["as_of"] = given["as_of"].strip()
    if given.get("uri"):
        body["to"] = {"uri": given["uri"].strip(), "password": given.get("password", "")}
    return body


def _as_given(given: Given) -> dict[str, Any]:
    return dict(given)


def _queue_of(given: Given) -> str:
    return f"{quote(given['vhost'], safe='')}/{quote(given['queue'], safe='')}"


def _scrubbed(site: SiteFacts) -> tuple[int, int] | None:
    scrub = site.replication.scrub
    return (scrub.octets_done, scrub.octets_total) if scrub is not None and scrub.running else None


def _at(path: str) -> Callable[[Given], str]:
    return lambda _: path


# -- where they are offered -------------------------------------------------------------------


def _not_standby(site: SiteFacts) -> str:
    return "" if is_downstream(site) else "The site is no standby."


def _not_promotable(site: SiteFacts) -> str:
    """Also a promotion that was interrupted goes on, by promoting again."""
    return "" if site.standby.promotion is not None else _not_standby(site)


def _not_upstream(site: SiteFacts) -> str:
    if is_downstream(site) or not site.schema.upstream_endpoints:
        return (
            "The site has no upstream to return to: set the endpoints of the site that took its place first."
        )
    return ""


def _not_follower(site: SiteFacts) -> str:
    return "" if site.replication.role == "follower" else "The node of this address is no follower."


def _not_cluster(site: SiteFacts) -> str:
    return "" if site.cluster.state == "member" else "The site is no cluster."


def _no_followers(site: SiteFacts) -> str:
    return "" if site.replication.followers else "The node has no followers to compare with."


def _nothing_against(_: SiteFacts) -> str:
    return ""


# -- what will happen -------------------------------------------------------------------------


def _of_recovery(site: SiteFacts) -> list[str]:
    found: list[str] = []
    for row in site.standby.vhosts:
        lost = f"{row.lag_records:,} records that the upstream had when it was last heard are not here"
        if not row.lag_records:
            lost = "everything is here that the upstream had when it was last heard"
        heard = "never" if row.heard_ago_ms is None else f"{row.heard_ago_ms / 1000:,.1f} s ago"
        missing = (
            f", and {row.missing_messages:,} messages that retention dropped" if row.missing_messages else ""
        )
        found.append(f"Vhost {row.virtual_host}: {lost}{missing}; heard {heard}.")
    return found


def _of_promotion(site: SiteFacts) -> list[str]:
    found = _of_recovery(site)
    if site.standby.promotion is not None:
        found.insert(0, "A promotion has begun and is not done: this goes on with it.")
    if any(row.state == "connected" for row in site.standby.vhosts):
        found.append(
            "The upstream is alive. A promotion does not stop it: two sites would serve applications, and what the "
            "upstream accepts from now on is missing here."
        )
    found.append("The site serves applications afterwards, and follows its upstream no more.")
    return found


def _of_follower(site: SiteFacts) -> list[str]:
    leader = site.replication.leader
    if leader is None:
        return ["No leader is known."]
    lag = "unknown" if leader.lag_records is None else f"{leader.lag_records:,} records"
    return [f"The leader {leader.name or leader.uri} is {leader.state}; this node lacks {lag} of it."]


def _of_leaders(site: SiteFacts) -> list[str]:
    led = Counter(queue.node for queue in site.queues)
    return [f"Node {name} leads {count:,} queues now." for name, count in sorted(led.items())]


def _of_mirrors(site: SiteFacts) -> list[str]:
    unsynchronised = [
        queue
        for queue in site.queues
        if set(queue.slave_nodes or ()) - set(queue.synchronised_slave_nodes or queue.slave_nodes or ())
        or (queue.slave_nodes and not queue.synchronised_slave_nodes)
    ]
    messages = sum(queue.messages for queue in unsynchronised)
    first = ", ".join(f"{queue.name} in {queue.vhost}" for queue in unsynchronised[:5])
    text = f"{len(unsynchronised):,} queues with {messages:,} messages have mirrors that are not synchronised"
    return [f"{text}: {first}." if unsynchronised else f"{text}."]


def _of_disk(site: SiteFacts) -> list[str]:
    return [
        f"All stored data of the node is read: {len(site.queues):,} queues. Clients are served meanwhile."
    ]


def _of_return(site: SiteFacts) -> list[str]:
    messages = site.overview.queue_totals.get("messages")
    count = f"{messages:,}" if isinstance(messages, int) else "an unknown number of"
    return [
        f"The site has {count} messages. Those of replicated queues that the new upstream never saw are quarantined; "
        "the queues are the new upstream's afterwards.",
    ]


_WHICH: Final = (
    ActionOption("exclude_virtual_hosts", "names", "Leave out virtual hosts"),
    ActionOption("queues", "names", "Only these queues"),
    ActionOption("as_of", "moment", "As of a time, such as 2026-11-21T14:00:00Z"),
    ActionOption("all_available", "flag", "Also where settlements are unknown or files are damaged"),
)
_SCRATCH: Final = ActionOption(
    "start_from_scratch", "flag", "Also messages that were consumed or recovered before"
)
_TARGET: Final = (
    ActionOption("uri", "text", "The broker, amqp://USER@HOST:PORT/VHOST", is_needed=True),
    ActionOption("password", "password", "The user's password there"),
)
_QUEUE: Final = (
    ActionOption("vhost", "text", "Virtual host", is_needed=True),
    ActionOption("queue", "text", "Queue", is_needed=True),
)
_COMPARED: Final = (
    ActionOption("follower", "text", "Only this follower"),
    ActionOption("deep", "flag", "Read all that is stored"),
)
_STANDBY: Final = "/api/replication/standby"
_PROMOTE: Final = "/api/replication/promote"
ACTIONS: Final[Sequence[SiteAction]] = (
    SiteAction(
        "dry_run", "Dry run of a promotion", _at(f"{_STANDBY}/dry-run"), _not_standby, _of_recovery, _recovery,
        (*_WHICH, _SCRATCH), is_report=True,
    ),
    SiteAction(
        "rehearse", "Rehearsal of a promotion", _at(f"{_STANDBY}/rehearse"), _not_standby, _of_recovery, _recovery,
        _WHICH, is_report=True,
    ),
    SiteAction(
        "promote", "Promotion", _at(f"{_STANDBY}/promote"), _not_promotable, _of_promotion, _recovery,
        (*_WHICH, _SCRATCH), is_final=True, is_report=True,
    ),
    SiteAction(
        "recover_into", "Recovery into another broker", _at(f"{_STANDBY}/promote"), _not_standby, _of_recovery,
        _recovery, (*_TARGET, *_WHICH, _SCRATCH), is_final=True, is_report=True,
    ),
    SiteAction(
        "rejoin", "Return as a standby", _at(f"{_STANDBY}/rejoin"), _not_upstream, _of_return, _as_given,
        (ActionOption("set_all_aside", "flag", "Quarantine everything that is replicated here"),), is_final=True,
    ),
    SiteAction(
        "follower_dry_run", "Dry run of the follower's promotion", _at(_PROMOTE), _not_follower, _of_follower,
        lambda _: {"dry_run": True},
    ),
    SiteAction(
        "promote_follower", "Promotion of the follower", _at(_PROMOTE), _not_follower, _of_follower, _as_given,
        (
            ActionOption("force", "flag", "Also if the leader is alive, or messages would be lost"),
            ActionOption("apply_delayed", "flag", "Apply what a delayed follower holds back"),
        ),
        is_final=True,
    ),
    SiteAction(
        "rebalance", "Spread the leaders of queues", _at("/api/cluster/rebalance"), _not_cluster, _of_leaders,
        _as_given,
    ),
    SiteAction(
        "synchronise", "Synchronise the mirrors of a queue", lambda given: f"/api/cluster/sync/{_queue_of(given)}",
        _not_cluster, _of_mirrors, lambda _: {}, _QUEUE, queue_path=lambda given: f"/api/queues/{_queue_of(given)}",
    ),
    SiteAction(
        "verify", "Compare with followers", _at("/api/replication/verify"), _no_followers, _of_disk, _as_given,
        _COMPARED,
    ),
    SiteAction(
        "scrub", "Scrub stored data", _at("/api/replication/scrub"), _nothing_against, _of_disk, _as_given,
        measured=_scrubbed, unit="octets",
    ),
)  # fmt: skip
BY_NAME: Final = {action.name: action for action in ACTIONS}
