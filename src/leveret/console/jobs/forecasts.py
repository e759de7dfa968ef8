"""Forecasts: the effects of an operation in advance, in sentences with numbers. Pure."""

from __future__ import annotations

from collections import Counter

from leveret.console.judging.amounts import counted, duration_text
from leveret.console.sites.facts import SiteFacts


def of_dry_run(site: SiteFacts) -> list[str]:
    """Say that a dry run changes nothing; add the lag of each vhost."""
    return ["It counts the messages that a promotion would bring back, and changes nothing.", *_lag(site)]


def of_rehearsal(site: SiteFacts) -> list[str]:
    """Describe the scratch vhosts of a rehearsal; add the lag of each vhost."""
    return [
        "It recovers the messages into scratch virtual hosts of this site, compares each with the archive, and removes "
        "them. Queues and the transfer stay as they are.",
        *_lag(site),
    ]


def of_recovery_elsewhere(site: SiteFacts) -> list[str]:
    """Describe the effects on the other broker and on this site; add the lag of each vhost."""
    return [
        "It publishes the messages that were not consumed to queues of the other broker, and declares those that are "
        "missing there. This site stays as it is.",
        *_lag(site),
    ]


def of_promotion(site: SiteFacts) -> list[str]:
    """Describe the recovered messages, the lag of each vhost, and the effects on both sites."""
    found = ["It brings the messages that were not consumed back into the queues of this site.", *_lag(site)]
    if site.standby.promotion is not None:
        found.insert(0, "A promotion has begun and is not done: this goes on with it.")
    if any(row.state == "connected" for row in site.standby.vhosts):
        found.append(
            "The upstream is alive. A promotion does not stop it: two sites would serve applications, and messages "
            "that the upstream accepts from now on would be missing here."
        )
    found.append("The site serves applications afterwards, and follows its upstream no more.")
    return found


def _lag(site: SiteFacts) -> list[str]:
    """Return, for each vhost, the missing records and the time of its upstream's last report."""
    found: list[str] = []
    for row in site.standby.vhosts:
        if row.heard_ago_ms is None:
            why = row.error or "its upstream was not heard since the start"
            found.append(f"Vhost {row.virtual_host}: the number of missing records is not known: {why}.")
            continue
        if row.state == "recover":
            found.append(
                f"Vhost {row.virtual_host}: records of its upstream are missing for good: {row.error}."
            )
            continue
        heard = f"{duration_text(row.heard_ago_ms / 1000)} ago"
        known = counted(row.lag_records, "record")
        verb = "is" if row.lag_records == 1 else "are"
        lost = f"{known} that the upstream had when it was last heard, {heard}, {verb} not here"
        if not row.lag_records:
            lost = f"everything is here that the upstream had when it was last heard, {heard}"
        missing = (
            f", nor {'is' if row.missing_messages == 1 else 'are'} {counted(row.missing_messages, 'message')} that "
            "retention dropped"
            if row.missing_messages
            else ""
        )
        found.append(f"Vhost {row.virtual_host}: {lost}{missing}. Its later messages are not here.")
    return found


def of_follower(site: SiteFacts) -> list[str]:
    """Return the state of the leader, and the records that this node lacks or holds back."""
    leader = site.replication.leader
    if leader is None:
        return ["No leader is known."]
    name, held = leader.name or leader.uri, leader.held_back
    if held is None:
        lag = counted(leader.lag_records, "record")
        return [f"The leader {name} is {leader.state}; this node lacks {lag} of it."]
    if not held.records:
        return [f"The leader {name} is {leader.state}; this node is delayed, and holds nothing back now."]
    return [
        f"The leader {name} is {leader.state}; this node is delayed, and can leave out "
        f"{counted(held.records, 'record')} of it with {counted(held.messages, 'message')}.",
        "Choose to apply all of them, or those up to a moment, and the later ones are quarantined: "
        "neither can be undone.",
    ]


def of_leaders(site: SiteFacts) -> list[str]:
    """Return the number of queues that each node leads now."""
    led = Counter(queue.node for queue in site.queues)
    return [f"Node {name} leads {counted(count, 'queue')} now." for name, count in sorted(led.items())]


def of_mirrors(site: SiteFacts) -> list[str]:
    """Return the number of queues with mirrors that are not synchronised, and the first of these queues."""
    unsynchronised = [
        queue
        for queue in site.queues
        if set(queue.slave_nodes or ()) - set(queue.synchronised_slave_nodes or ())
    ]
    messages = sum(queue.messages for queue in unsynchronised)
    first = ", ".join(f"{queue.name} in {queue.vhost}" for queue in unsynchronised[:5])
    queues, verb = counted(len(unsynchronised), "queue"), "has" if len(unsynchronised) == 1 else "have"
    text = f"{queues} with {counted(messages, 'message')} {verb} mirrors that are not synchronised"
    return [f"{text}: {first}." if unsynchronised else f"{text}."]


def of_disk(site: SiteFacts) -> list[str]:
    """Return the amount of data that the node reads."""
    return [
        f"All stored data of the node is read: {counted(len(site.queues), 'queue')}. Clients are served meanwhile."
    ]


def of_return(site: SiteFacts) -> list[str]:
    """Return the messages that applications may lose."""
    messages = counted(site.overview.queue_totals.get("messages"), "message")
    return [
        f"The site has {messages}. Those of replicated queues that the new upstream never received are quarantined; "
        "afterwards the queues follow the new upstream.",
    ]
