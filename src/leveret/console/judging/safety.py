"""The safety of each queue, from the reports of all sites: its copies, and the loss of a node or a site now. Pure.

A loss is the number of messages that no other copy has: if a node is lost, no other node and no other site; if a site
is lost, no other site. Only confirmed messages that are still in the queue count, so a loss is never more than the
queue's messages. A number that no site reports is None, and never counts as 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

from leveret.console.judging.amounts import counted, duration_text
from leveret.console.judging.conflicts import place_of, queues_in_conflict
from leveret.console.judging.links import StandbyLink, is_downstream, standby_links, standbys_that_left
from leveret.console.judging.retention import retention_warning
from leveret.console.sites.documents import FollowerStatus, LeaderStatus, QueueStatus, TransferredVhost
from leveret.console.sites.facts import SiteFacts
from leveret.model.tags import tags_of

REPLICATE: Final = "remote-dc-replicate"
STANDBY_TAG: Final = "standby_replication"
LAG_WELL_S: Final = 10.0
"""The lag of a healthy standby: transfers come in batches."""
ALL_QUEUES: Final = ""
"""The queue name in a row for a whole vhost whose queues are unknown."""


class Danger(IntEnum):
    """The degree of danger, worst first."""

    DOWN = 0
    ONE_COPY = 1
    NOT_HEARD = 2
    BEHIND = 3
    ONE_SITE = 4
    SAFE = 5
    BY_DESIGN = 6


class Loss(NamedTuple):
    """A loss in messages and in seconds; None means unknown."""

    messages: int | None
    seconds: float | None


NOTHING: Final = Loss(0, 0.0)


class QueueCopy(NamedTuple):
    """One copy of a queue: its place, kind and state.

    Attributes:
        is_elsewhere: whether the copy is at another site.
        is_whole: whether the copy has all confirmed messages; of a standby, whether its lag is healthy.
        behind: the messages that the copy lacks.
    """

    place: str
    kind: str
    state: str
    is_elsewhere: bool
    is_whole: bool
    behind: Loss


class _Verdict(NamedTuple):
    """The content of a queue's row beside the names of the queue."""

    danger: Danger
    copies: tuple[QueueCopy, ...]
    if_node: Loss
    if_site: Loss
    reason: str


class SafetyRow(NamedTuple):
    """The safety of a queue, or of a vhost whose queues are unknown."""

    danger: Danger
    site: str
    vhost: str
    queue: str
    type: str
    messages: int
    copies: tuple[QueueCopy, ...]
    if_node: Loss
    if_site: Loss
    reason: str


def safety_rows(sites: Sequence[SiteFacts], now_ms: int) -> list[SafetyRow]:
    """Return a row for each queue of a leading site and for each vhost of an unknown upstream, worst first."""
    links = standby_links(sites)
    heard = {site.site for site in sites if site.is_heard(now_ms)}
    leading = [site for site in sites if not _is_answered_for(site, sites)]
    rows = [row for site in leading for row in _rows_of(_SiteView(site, sites, links, heard, now_ms))]
    rows += _orphans(sites, links, now_ms)
    rows.sort(key=_order)
    return rows


def counts(rows: Iterable[SafetyRow]) -> dict[str, int]:
    """Return the number of rows of each danger."""
    found = Counter(row.danger for row in rows)
    return {danger.name.lower(): found[danger] for danger in Danger}


def by_vhost(rows: Sequence[SafetyRow]) -> list[dict[str, Any]]:
    """Return a row for each site and vhost, worst first: its number of queues and messages, and their joint losses.

    The numbers are None for a vhost whose queues are unknown.
    """
    groups: dict[tuple[str, str], list[SafetyRow]] = {}
    for row in rows:
        groups.setdefault((row.site, row.vhost), []).append(row)
    return [_summed(group) for group in groups.values()]


def joint_losses(vhosts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the joint loss of all sites that are heard, if every one goes, and of those that are not.

    `vhosts` are all rows of `by_vhost`. `silent_sites` are the names of the sites that are not heard.
    """
    silent = sorted({each["site"] for each in vhosts if each["danger"] == Danger.NOT_HEARD.name.lower()})
    return {
        "heard": _sum(each["if_site"] for each in vhosts if each["site"] not in silent),
        "silent": _sum(each["if_site"] for each in vhosts if each["site"] in silent),
        "silent_sites": silent,
    }


def _summed(group: Sequence[SafetyRow]) -> dict[str, Any]:
    worst = group[0]
    is_counted = all(row.queue != ALL_QUEUES for row in group)
    return {
        "danger": worst.danger.name.lower(),
        "site": worst.site,
        "vhost": worst.vhost,
        "queues": len(group) if is_counted else None,
        "messages": sum(row.messages for row in group) if is_counted else None,
        "if_node": _sum(row.if_node for row in group),
        "if_site": _sum(row.if_site for row in group),
        "reason": worst.reason,
    }


def _sum(losses: Iterable[Loss]) -> Loss:
    """Return the joint loss of many queues: the sum of messages, the longest time."""
    given = list(losses)
    messages = [loss.messages for loss in given]
    seconds = [loss.seconds for loss in given if loss.messages != 0]
    return Loss(
        None if None in messages else sum(each or 0 for each in messages),
        None if None in seconds else max((each or 0.0 for each in seconds), default=0.0),
    )


def _order(row: SafetyRow) -> tuple[Any, ...]:
    lost = max(_counted(row.if_node), _counted(row.if_site))
    seconds = max(row.if_node.seconds or 0, row.if_site.seconds or 0)
    return (row.danger, -lost, -seconds, row.site, row.vhost, row.queue)


def _counted(loss: Loss) -> float:
    return float("inf") if loss.messages is None else loss.messages


# -- the queues of one site -------------------------------------------------------------------


def _is_answered_for(site: SiteFacts, sites: Sequence[SiteFacts]) -> bool:
    """Return whether a site is the follower of another site's node: then the leader's rows cover its queues."""
    if site.replication.role != "follower":
        return False
    return any(
        site.replication.node in {follower.name for follower in other.replication.followers}
        for other in sites
        if other is not site
    )


def _rows_of(view: _SiteView) -> Iterator[SafetyRow]:
    for queue in view.site.queues:
        if queue.vhost not in view.transferred:
            yield _row_of(queue, view)


class _SiteView:
    """The data that all queues of a site have in common, computed once."""

    def __init__(
        self,
        site: SiteFacts,
        sites: Sequence[SiteFacts],
        links: Sequence[StandbyLink],
        heard: Collection[str],
        now_ms: int,
    ) -> None:
        self.site = site
        self.heard = heard
        self.is_heard = site.site in heard
        self.age_s = (site.age_ms(now_ms) or 0) / 1000
        self.followers = [
            copy for follower in site.replication.followers for copy in _follower_copy(follower)
        ]
        self.standbys: dict[str, list[StandbyLink]] = {}
        for link in links:
            if link.upstream == site.site:
                self.standbys.setdefault(link.vhost, []).append(link)
        self.tagged = {vhost.name for vhost in site.vhosts if STANDBY_TAG in tags_of(vhost.tags)}
        self.replicating = {
            (policy.vhost, policy.name)
            for policy in site.policies
            if policy.definition.get(REPLICATE) is True
        }
        self.successors = [each.site for each in standbys_that_left(site, sites)]
        # The rows of the upstream cover the vhosts that a downstream transfers.
        self.transferred = {row.virtual_host for row in site.standby.vhosts} if is_downstream(site) else set()
        warnings = {
            vhost: [retention_warning(site, each, now_ms) for each in links]
            for vhost, links in self.standbys.items()
        }
        self.overtaking = {vhost: " ".join(filter(None, texts)) for vhost, texts in warnings.items()}
        # By vhost, each standby's queues in conflict; usually none.
        self.conflicts = {
            vhost: found
            for vhost, links in self.standbys.items()
            if (found := [(link, each) for link in links if (each := queues_in_conflict(link, sites))])
        }
        self.verdicts: dict[tuple[Any, ...], _Verdict] = {}
        self.collect_errors = {row.virtual_host: row.error for row in site.standby.collected if row.error}


def _row_of(queue: QueueStatus, view: _SiteView) -> SafetyRow:
    # Most of ten thousand queues differ only in their names.
    likeness = (
        queue.vhost, queue.policy, queue.durable, queue.exclusive, queue.state, queue.messages, queue.node,
        queue.leader, queue.members, queue.online, queue.slave_nodes, queue.synchronised_slave_nodes,
        _conflict_of(queue, view) if view.conflicts else "",
    )  # fmt: skip
    found = view.verdicts.get(likeness)
    if found is None:
        found = view.verdicts[likeness] = _verdict_of(queue, view)
    danger, copies, if_node, if_site, reason = found
    return SafetyRow(
        danger, view.site.site, queue.vhost, queue.name, queue.type, queue.messages, copies, if_node, if_site,
        reason,
    )  # fmt: skip


def _verdict_of(queue: QueueStatus, view: _SiteView) -> _Verdict:
    others = [*_mirror_copies(queue), *_whole_node_copies(queue, view)]
    away = (
        [_standby_copy(link, queue, view) for link in view.standbys.get(queue.vhost, ())]
        if _is_sent(queue, view)
        else []
    )
    kind = "leader"
    if view.site.replication.leader is not None:
        # The node follows a leader that this console does not know.
        kind = "follower"
        others.insert(0, _leader_copy(view.site.replication.leader))
    leader = QueueCopy(_node_of(queue, view), kind, queue.state, False, True, NOTHING)
    if_node = _least(queue, [*others, *away], view)
    if_site = _least(queue, away, view)
    if view.successors and not view.is_heard and not away and _is_sent(queue, view):
        # No site reports how much of the queue the successor has.
        if_site = Loss(None, None)
    danger, reason = _judge(queue, view, others, away, if_node, if_site)
    return _Verdict(danger, (leader, *others, *away), if_node, if_site, reason)


def _node_of(queue: QueueStatus, view: _SiteView) -> str:
    return queue.leader or queue.node or view.site.replication.node or view.site.site


def _leader_copy(leader: LeaderStatus) -> QueueCopy:
    """Return the leader as a copy, by its follower's report: a streaming follower's leader has all messages."""
    if leader.state in ("streaming", "delayed"):
        return QueueCopy(leader.name or leader.uri, "leader", "running", False, True, NOTHING)
    return QueueCopy(leader.name or leader.uri, "leader", "not heard of", False, False, Loss(None, None))


def _follower_copy(follower: FollowerStatus) -> Iterator[QueueCopy]:
    if follower.in_sync:
        yield QueueCopy(follower.name, "follower", "in sync", False, True, NOTHING)
    elif follower.state in ("streaming", "catching_up", "delayed"):
        behind = Loss(follower.lag_records, follower.lag_s)
        yield QueueCopy(follower.name, "follower", follower.state.replace("_", " "), False, False, behind)
    else:
        # A joining follower may have all messages or none.
        state = (follower.state or "not connected").replace("_", " ")
        yield QueueCopy(follower.name, "follower", state, False, False, Loss(None, None))


def _whole_node_copies(queue: QueueStatus, view: _SiteView) -> list[QueueCopy]:
    return view.followers if queue.durable and not queue.exclusive else []


def _mirror_copies(queue: QueueStatus) -> Iterator[QueueCopy]:
    leader = queue.leader or queue.node
    if queue.synchronised_slave_nodes is not None or queue.slave_nodes is not None:
        whole = set(queue.synchronised_slave_nodes or ())
        for node in queue.slave_nodes or ():
            yield _mirror(node, is_whole=node in whole)
        return
    online = set(queue.online or ())
    for node in queue.members or ():
        if node != leader and node in online:
            yield QueueCopy(node, "member", "online", False, True, NOTHING)
        elif node != leader:
            yield QueueCopy(node, "member", "not running", False, False, Loss(None, None))


def _mirror(node: str, *, is_whole: bool) -> QueueCopy:
    if is_whole:
        return QueueCopy(node, "mirror", "synchronised", False, True, NOTHING)
    return QueueCopy(node, "mirror", "not synchronised", False, False, Loss(None, None))


def _is_sent(queue: QueueStatus, view: _SiteView) -> bool:
    """Return whether the queue's messages go to standbys."""
    return (
        queue.durable
        and not queue.exclusive
        and queue.vhost in view.tagged
        and (queue.vhost, queue.policy) in view.replicating
    )


def _standby_copy(link: StandbyLink, queue: QueueStatus, view: _SiteView) -> QueueCopy:
    place = link.downstream or link.known_as
    seconds = None if link.lag_ms is None else link.lag_ms / 1000
    if link.row is not None and not link.row.is_archive_read:
        return QueueCopy(place, "standby", "archive not read yet", True, False, Loss(None, seconds))
    is_standby_heard = link.row is not None and link.downstream in view.heard
    lag = _known_lag(link, view)
    lacks = None if lag is None else min(queue.messages, lag + link.missing_messages)
    is_near = (
        is_standby_heard
        and lag is not None
        and seconds is not None
        and seconds <= LAG_WELL_S
        and not link.missing_messages
    )
    state = (link.row.state or "unknown") if link.row is not None and is_standby_heard else "not heard of"
    return QueueCopy(place, "standby", state, True, is_near, Loss(lacks, seconds))


def _known_lag(link: StandbyLink, view: _SiteView) -> int | None:
    """Return the number of records that a standby lacks now; None if that is unknown.

    A standby without recent reports of its upstream counts old records only; then the upstream's own count holds.
    """
    if link.row is not None and link.downstream in view.heard and _hears(link.row):
        return link.lag_records
    return link.upstream_lag_records if view.is_heard else None


def _hears(row: TransferredVhost) -> bool:
    return row.heard_ago_ms is not None and row.heard_ago_ms <= LAG_WELL_S * 1000


def _least(queue: QueueStatus, copies: Sequence[QueueCopy], view: _SiteView) -> Loss:
    """Return the loss if only these copies are left: that of the best copy; the whole queue without copies."""
    if not copies:
        return Loss(queue.messages, None if queue.messages else 0.0)
    best = _best(copies)
    if best.behind.messages is None:
        # No copy is known to have a message. A silent site may have accepted unknown messages since its last report.
        return Loss(queue.messages if view.is_heard else None, best.behind.seconds)
    return Loss(min(queue.messages, best.behind.messages), best.behind.seconds)


# -- the verdict ------------------------------------------------------------------------------


def _judge(
    queue: QueueStatus,
    view: _SiteView,
    others: Sequence[QueueCopy],
    away: Sequence[QueueCopy],
    if_node: Loss,
    if_site: Loss,
) -> tuple[Danger, str]:
    """Return the danger, and its reason in sentences."""
    if queue.exclusive:
        return Danger.BY_DESIGN, "An exclusive queue ends with its connection."
    if not queue.durable:
        return Danger.BY_DESIGN, "A transient queue ends with its node."
    if not view.is_heard:
        return Danger.NOT_HEARD, _not_heard(queue, view, others, away)
    if queue.state in ("down", "crashed"):
        return Danger.DOWN, f"The queue is {queue.state}: no application reaches its messages now."
    if not others and not away:
        return Danger.ONE_COPY, f"The only copy is at this node. {_why_not_sent(queue, view)}"
    warning = f" {view.overtaking[queue.vhost]}" if away and view.overtaking.get(queue.vhost) else ""
    if not any(copy.is_whole for copy in (*others, *away)):
        return Danger.BEHIND, f"No other copy is complete: {_lack(others or away)}.{warning}"
    if not away:
        return Danger.ONE_SITE, f"All copies are at one site. {_why_not_sent(queue, view)}"
    if not any(copy.is_whole for copy in away):
        return Danger.BEHIND, f"No other site has all messages: {_lack(away)}.{warning}"
    if conflict := _conflict_of(queue, view):
        return Danger.BEHIND, conflict
    return Danger.SAFE, _why_safe(if_node, if_site, away)


def _conflict_of(queue: QueueStatus, view: _SiteView) -> str:
    """Return a sentence about a standby whose queue of this name is a different one; empty if there is none."""
    for link, reasons in view.conflicts.get(queue.vhost, ()):
        if reason := reasons.get(place_of(queue.vhost, queue.name)):
            return (
                f"The queue at standby {link.downstream} is another one: {reason}. "
                "A synchronisation of definitions with --force replaces it."
            )
    return ""


def _not_heard(
    queue: QueueStatus, view: _SiteView, others: Sequence[QueueCopy], away: Sequence[QueueCopy]
) -> str:
    """Return a text about the known messages that a promotion would lack now, and about possible others."""
    since = f"Site {view.site.site} was last heard {duration_text(view.age_s)} ago"
    whole = next((copy for copy in others if copy.is_whole), None)
    if whole is not None:
        return f"{since}; {whole.kind} {whole.place} had every message then."
    if not away and view.successors and _is_sent(queue, view):
        names = ", ".join(view.successors)
        return f"{since}. Its standby {names} was promoted, and serves its copy of the queue."
    if not away:
        return f"{since}; {_lack(others)}." if others else f"{since}; no other site has a copy."
    reporting = [link for link in view.standbys[queue.vhost] if link.row is not None]
    if not reporting:
        return f"{since}; {_lack(away)}."
    nearest = min(reporting, key=lambda link: (link.lag_records, link.lag_ms or 0))
    age = "" if nearest.lag_ms is None else f" of the last {duration_text(nearest.lag_ms / 1000)}"
    return (
        f"{since}. A promotion of {nearest.downstream} now lacks {counted(nearest.lag_records, 'known record')} of "
        f"the virtual host, and all unreported ones{age}."
    )


def _best(copies: Sequence[QueueCopy]) -> QueueCopy:
    """Return the copy that lacks least."""
    return min(copies, key=lambda copy: (_counted(copy.behind), copy.behind.seconds or 0.0))


def _lack(copies: Sequence[QueueCopy]) -> str:
    """Return a text about what the best of several incomplete copies lacks."""
    best = _best(copies)
    subject = f"{best.kind} {best.place}"
    if best.behind == NOTHING:
        return f"{subject} has everything"
    if best.behind.messages == 0:
        age = (
            "later ones"
            if best.behind.seconds is None
            else f"those of the last {duration_text(best.behind.seconds)}"
        )
        return f"{subject} ({best.state}) lacks no known message, and may lack {age}"
    lacks = ("" if best.behind.messages is None else "up to ") + counted(best.behind.messages, "message")
    age = "" if best.behind.seconds is None else f", the last {duration_text(best.behind.seconds)}"
    return f"{subject} ({best.state}) lacks {lacks}{age}"


def _why_not_sent(queue: QueueStatus, view: _SiteView) -> str:
    """Return the reason why no other site has a copy."""
    if error := view.collect_errors.get(queue.vhost):
        return f"Collection for standbys stopped: {error}."
    has_policy = (queue.vhost, queue.policy) in view.replicating
    if not has_policy and queue.vhost not in view.tagged:
        return "No policy sends it to a standby, and its vhost has no tag standby_replication."
    if not has_policy:
        return "No policy of the queue has remote-dc-replicate."
    if queue.vhost not in view.tagged:
        return "Its policy asks for a standby, but the vhost has no tag standby_replication."
    if view.successors:
        return f"Its standby {', '.join(view.successors)} was promoted, and follows no more."
    return "No standby has transferred anything of its vhost yet."


def _why_safe(if_node: Loss, if_site: Loss, away: Sequence[QueueCopy]) -> str:
    best = next(copy for copy in away if copy.is_whole)
    if if_site.messages == 0:
        return f"Standby {best.place} has every message."
    within = "" if if_site.seconds is None else f" {duration_text(if_site.seconds)}"
    also = " The loss of the node loses nothing." if if_node.messages == 0 else ""
    return f"Standby {best.place} follows within{within}.{also}"


# -- vhosts of unknown upstreams --------------------------------------------------------------


def _orphans(sites: Sequence[SiteFacts], links: Sequence[StandbyLink], now_ms: int) -> Iterator[SafetyRow]:
    """Yield a row for each transferred vhost whose upstream no site reports: the upstream may be gone."""
    by_name: Mapping[str, SiteFacts] = {site.site: site for site in sites}
    for link in links:
        if link.row is None or (link.upstream and by_name[link.upstream].queues):
            continue
        seconds = None if link.lag_ms is None else link.lag_ms / 1000
        heard_ms = link.row.heard_ago_ms
        is_heard = by_name[link.downstream].is_heard(now_ms) and _hears(link.row)
        # The upstream may have accepted unknown messages since its last report.
        behind = Loss(link.lag_records + link.missing_messages if is_heard else None, seconds)
        copy = QueueCopy(link.downstream, "standby", link.row.state, True, is_heard, behind)
        when = "never" if heard_ms is None else f"{duration_text(heard_ms / 1000)} ago"
        reason = (
            f"Standby {link.downstream} last heard its upstream {when}: a promotion now lacks "
            f"{counted(link.lag_records, 'known record')}, and all later ones."
        )
        if is_heard:
            reason = f"Standby {link.downstream} hears its upstream, whose queues this console does not know."
        danger = Danger.SAFE if is_heard else Danger.NOT_HEARD
        site = link.upstream or f"upstream of {link.downstream}"
        yield SafetyRow(danger, site, link.vhost, ALL_QUEUES, "", 0, (copy,), behind, behind, reason)
