"""The actions of operators at a site: their conditions, forecasts, options and requests. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from leveret.console.jobs import forecasts, readings, refusals
from leveret.console.sites.facts import SiteFacts
from leveret.model.errors import InvalidCommand
from leveret.model.moment import moment_ms
from leveret.model.path_part import path_part

TEXT_CHARACTERS_MAX: Final = 2000
ADMINISTRATOR: Final = "administrator"
Given = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ActionOption:
    """An option of an action; `kind` is flag, text, moment, names (separated by commas) or password.

    Attributes:
        makes_sense: returns whether the option applies to a site.
        span: of a moment: returns the first and the last one, in milliseconds since 1970; None if the site does not
            report them regularly.
    """

    name: str
    kind: str
    label: str
    is_needed: bool = False
    makes_sense: Callable[[SiteFacts], bool] = lambda _: True
    span: Callable[[SiteFacts], tuple[int, int] | None] = lambda _: None


@dataclass(frozen=True, slots=True)
class SiteAction:
    """An action.

    Attributes:
        refusal: returns the reason why the action does not apply to a site; empty if it applies.
        forecast: returns the effects of the action in advance, in sentences with numbers.
        body: returns the body of the request from the chosen options.
        is_final: whether the action cannot be undone; then the operator has to type the site's name.
        is_report: whether the site answers with a line for each step, instead of one document.
        measured: returns the site's measurement of the running action, (done, total) in `unit`; None without one.
        preview: the name of the action that shows the effects of this one; it gets the options that both have.
        queue_path: for an action that is answered at its begin: returns the path of the queue that shows the progress.
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
    preview: str = ""
    queue_path: Callable[[Given], str] | None = None


def check_given(action: SiteAction, given: Given) -> dict[str, Any]:
    """Check the chosen options against those of the action; return them by name, without empty ones.

    Raises:
        InvalidCommand: an option is unknown, missing or of another kind; or a moment is invalid.
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
    action.body(chosen)
    return chosen


def names_in(text: str) -> list[str]:
    """Return the names in a list that commas separate."""
    return [name.strip() for name in text.split(",") if name.strip()]


# -- the requests -----------------------------------------------------------------------------


def _recovery(given: Given) -> dict[str, Any]:
    body: dict[str, Any] = {name: True for name in ("start_from_scratch", "all_available") if given.get(name)}
    body |= {name: names_in(given[name]) for name in ("exclude_virtual_hosts", "queues") if given.get(name)}
    if given.get("as_of"):
        body["as_of"] = given["as_of"].strip()
    if given.get("uri"):
        body["to"] = {"uri": _without_password(given["uri"].strip()), "password": given.get("password", "")}
    return body


def _without_password(uri: str) -> str:
    """Return the URI of another broker; all who may look at the site see it.

    Raises:
        InvalidCommand: the URI has a password, or is none; the text does not repeat it.
    """
    try:
        has_password = urlsplit(uri).password is not None
    except ValueError:
        raise InvalidCommand("The broker: this is no URI such as amqp://USER@HOST:5672") from None
    if has_password:
        raise InvalidCommand(
            "The broker: others would see the password in the URI; it has a field of its own"
        )
    return uri


def _as_given(given: Given) -> dict[str, Any]:
    return dict(given)


def _led_to(given: Given) -> dict[str, Any]:
    """Return the body of a follower's promotion.

    Raises:
        InvalidCommand: the moment is invalid.
    """
    body = {name: True for name in ("force", "apply_delayed") if given.get(name)}
    if not (text := given.get("apply_until", "").strip()):
        return body
    try:
        until_ms = moment_ms(text)
    except ValueError:
        raise InvalidCommand(f"'{text[:50]}' is no time such as 2026-11-21T14:30:00Z") from None
    return body | {"apply_until_ms": until_ms}


def _queue_of(given: Given) -> str:
    return f"{path_part(given['vhost'])}/{path_part(given['queue'])}"


def _at(path: str) -> Callable[[Given], str]:
    return lambda _: path


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
_PLACES: Final = (
    ActionOption("vhost_pattern", "text", "Only virtual hosts of this pattern"),
    ActionOption("queue_pattern", "text", "Only queues of this pattern"),
)
_COMPARED: Final = (
    ActionOption("follower", "text", "Only this follower"),
    ActionOption("deep", "flag", "Read all that is stored"),
)
_DELAYED: Final = (
    ActionOption(
        "apply_delayed", "flag", "Apply everything that the delayed follower can leave out",
        makes_sense=readings.is_delayed,
    ),
    ActionOption(
        "apply_until", "moment", "Apply up to a time, such as 2026-11-21T14:00:00Z", makes_sense=readings.is_delayed,
        span=readings.held_span,
    ),
)  # fmt: skip
_STANDBY: Final = "/api/replication/standby"
_PROMOTE: Final = "/api/replication/promote"
ACTIONS: Final[Sequence[SiteAction]] = (
    SiteAction(
        "dry_run", "Dry run of a promotion", _at(f"{_STANDBY}/dry-run"), refusals.nothing_transferred,
        forecasts.of_dry_run, _recovery, (*_WHICH, _SCRATCH), is_report=True,
    ),
    SiteAction(
        "rehearse", "Rehearsal of a promotion", _at(f"{_STANDBY}/rehearse"), refusals.nothing_transferred,
        forecasts.of_rehearsal, _recovery, _WHICH, is_report=True, preview="dry_run",
    ),
    SiteAction(
        "promote", "Promotion", _at(f"{_STANDBY}/promote"), refusals.not_promotable, forecasts.of_promotion, _recovery,
        (*_WHICH, _SCRATCH), is_final=True, is_report=True, preview="dry_run",
    ),
    SiteAction(
        "recover_into", "Recovery into another broker", _at(f"{_STANDBY}/promote"), refusals.nothing_transferred,
        forecasts.of_recovery_elsewhere, _recovery, (*_TARGET, *_WHICH, _SCRATCH), is_final=True, is_report=True,
        preview="dry_run",
    ),
    SiteAction(
        "rejoin", "Return as a standby", _at(f"{_STANDBY}/rejoin"), refusals.not_replaced, forecasts.of_return,
        _as_given, (ActionOption("set_all_aside", "flag", "Quarantine everything that is replicated here"),),
        is_final=True,
    ),
    SiteAction(
        "follower_dry_run", "Dry run of the follower's promotion", _at(_PROMOTE), refusals.not_follower,
        forecasts.of_follower, lambda given: {"dry_run": True, **_led_to(given)}, _DELAYED,
    ),
    SiteAction(
        "promote_follower", "Promotion of the follower", _at(_PROMOTE), refusals.not_follower, forecasts.of_follower,
        _led_to,
        (ActionOption("force", "flag", "Also if the leader is alive, or messages would be lost"), *_DELAYED),
        is_final=True, preview="follower_dry_run",
    ),
    SiteAction(
        "rebalance", "Spread the leaders of queues", _at("/api/cluster/rebalance"), refusals.no_other_node,
        forecasts.of_leaders, _as_given, _PLACES,
    ),
    SiteAction(
        "synchronise", "Synchronise the mirrors of a queue", lambda given: f"/api/cluster/sync/{_queue_of(given)}",
        refusals.no_mirrors, forecasts.of_mirrors, lambda _: {}, _QUEUE,
        queue_path=lambda given: f"/api/queues/{_queue_of(given)}",
    ),
    SiteAction(
        "verify", "Compare with followers", _at("/api/replication/verify"), refusals.nothing_to_compare,
        forecasts.of_disk, _as_given, _COMPARED, measured=readings.compared, unit="octets",
    ),
    SiteAction(
        "scrub", "Scrub stored data", _at("/api/replication/scrub"), refusals.cannot_scrub, forecasts.of_disk,
        _as_given, measured=readings.scrubbed, unit="octets",
    ),
)  # fmt: skip
BY_NAME: Final = {action.name: action for action in ACTIONS}


def may_act(site: SiteFacts) -> bool:
    """Return whether the user may request actions at a site."""
    return ADMINISTRATOR in site.tags and not site.refused


def offered(site: SiteFacts, *, is_heard: bool) -> list[SiteAction]:
    """Return the actions that apply to a site now and that its user may request."""
    if not is_heard or not may_act(site):
        return []
    return [action for action in ACTIONS if not action.refusal(site)]
