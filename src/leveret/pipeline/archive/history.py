"""The moments at which it is known how a vhost's queues stood."""

from __future__ import annotations

from leveret.model.errors import PreconditionFailed
from leveret.model.moment import moment_text
from leveret.pipeline.archive.identities import UpstreamIdentities
from leveret.pipeline.archive.manifest import Manifest


def known_from_ms(manifest: Manifest, identities: UpstreamIdentities, vhost: str) -> int:
    """The time before which the state of a vhost's queues is unknown; 0: it is known from the begin."""
    of_logs = (each.history_from_ms for each in identities.of_vhost(vhost))
    return max(manifest.history_from_ms(vhost), *of_logs, 0)


def check_known(manifest: Manifest, vhost: str, as_of_ms: int | None) -> None:
    """Refuse a moment before the known history of settlements; None is now.

    Raises:
        PreconditionFailed: what was settled before is removed, here or at the upstream.
    """
    if as_of_ms is None:
        return
    since_ms = known_from_ms(manifest, UpstreamIdentities(manifest.data_dir), vhost)
    if as_of_ms < since_ms:
        raise PreconditionFailed(
            f"vhost '{vhost}': the history of its queues begins at {moment_text(since_ms)}: messages that were "
            "settled before are removed, here or at the upstream, which had dropped them when the transfer began; "
            "name a later moment, and see standby.replication.retention.time_limit.messages"
        )
