"""The identities of the logs in the archive: a log that replaced another one does not continue it.

`<data_dir>/origins.json` has, by log (`wire.log_name`), the upstream's identity of it, and the numbers of missing
records: those that the upstream's retention dropped before the transfer, or before the log began. A loss of the
file loses only this check. In an archive that nodes of a cluster share, each vhost has a file of its own,
`<data_dir>/origins/vhost-<vhost>.json`, which its owner writes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from leveret.model.errors import PreconditionFailed, StorageError
from leveret.pipeline.archive.documents import read_document, write_document
from leveret.pipeline.files.files import Place, make_directory, matching, vhost_directory
from leveret.wire.log_name import title_of, vhost_of

UPSTREAM_IDENTITIES: Final = "origins.json"
IDENTITIES_BY_VHOST: Final = "origins"


class AnotherLog(PreconditionFailed):
    """The upstream's outgoing log is another one than that of the transferred records."""

    def __init__(self, log: str) -> None:
        super().__init__(
            f"{title_of(log)}: the upstream's outgoing log is another one than that of the transferred records: the "
            "vhost was deleted and made again, or this is another upstream; promote this standby, or delete its data "
            "with delete_orphaned_data_on_standby_replication_downstream_cluster, and the transfer begins again"
        )


class OtherEnd(PreconditionFailed):
    """The upstream's outgoing log is that of the transferred records, but has lost the end of them."""

    def __init__(self, log: str, stored: int) -> None:
        super().__init__(
            f"{title_of(log)}: the log was transferred up to offset {stored}, and the upstream has other records "
            "before that offset: a follower that lacked records was promoted there; promote this standby, which has "
            "the lost records, or delete its data with "
            "delete_orphaned_data_on_standby_replication_downstream_cluster, and the transfer begins again"
        )


class UpstreamIdentity(msgspec.Struct):
    """The origin of a log's data.

    Attributes:
        log_id: the log's name at the upstream, 0 if unknown.
        missing: the number of records that the upstream dropped before their transfer.
        missing_messages: the most messages of its queues that its log had dropped when the transfer began.
        history_from_ms: the time of the transfer's begin, by the clock here, if the log had dropped records by then;
            else 0. The state of queues before that is unknown, because settlements are missing.
        is_replaced: whether the upstream has another log by now, or one with another end.
        site: the id of the upstream's cluster; empty for a single node.
        label: of a single node's log, the label of the node that goes on with it in a cluster that it founded.
    """

    log_id: int = 0
    missing: int = 0
    missing_messages: int = 0
    history_from_ms: int = 0
    is_replaced: bool = False
    site: str = ""
    label: str = ""


class UpstreamIdentities:
    """The content of the files; only the transfer writes them."""

    def __init__(self, data_dir: Place, *, is_shared: bool = False) -> None:
        """Read the files; write one for each vhost if other nodes write to the archive.

        Raises:
            StorageError: a file is damaged.
        """
        self._path: Place = data_dir / UPSTREAM_IDENTITIES
        self._by_vhost: Place = data_dir / IDENTITIES_BY_VHOST
        self._is_shared = is_shared
        self._another: set[str] = set()
        self.by_log = _read(self._path)
        for place in matching(self._by_vhost, "*.json"):
            self.by_log |= _read(place)

    def check(
        self,
        log: str,
        log_id: int,
        *,
        has_data: bool,
        lost_after: int | None = None,
        site: str = "",
        beside: Iterable[str] = (),
        expected: int = 0,
    ) -> None:
        """Compare the log's id at the upstream with the stored one; without data of it, take the new one.

        Args:
            log: the log.
            log_id: its id at the upstream.
            has_data: whether records of it are here.
            lost_after: the offset up to which it is here, if the upstream's has other records at that end; None
                otherwise.
            site: the id of the upstream's cluster.
            beside: the logs of the same vhost with records here.
            expected: its id in the archive that a promotion recovers instead of this one; 0 if there is none.

        Raises:
            AnotherLog: the records here, or there, are another log's, or those of another site's.
            OtherEnd: it lost the end of the records here.
        """
        known = self.by_log.setdefault(log, UpstreamIdentity())
        before = msgspec.structs.replace(known)
        is_expected = expected in (0, log_id)
        if is_expected and (not has_data or not known.log_id):
            known.log_id, known.missing = log_id, 0 if not has_data else known.missing
            known.site = site
        is_another = not is_expected or known.log_id != log_id
        is_another |= any(self.by_log[each].site != site for each in (log, *beside) if each in self.by_log)
        self._another = self._another | {log} if is_another else self._another - {log}
        known.is_replaced = is_another or lost_after is not None
        if known != before:
            self._save(log)
        if is_another:
            raise AnotherLog(log)
        if lost_after is not None:
            raise OtherEnd(log, lost_after)

    def check_begin(self, log: str) -> None:
        """Check that a log without records here may begin.

        Not if another log of its vhost was found to be another one than that of the records here: the vhost was made
        anew, and the messages of both would be mixed.

        Raises:
            AnotherLog: one was.
        """
        if any(each != log and vhost_of(each) == vhost_of(log) for each in self._another):
            raise AnotherLog(log)

    def of(self, log: str) -> UpstreamIdentity:
        """The identity of a log; an empty one if none is known."""
        return self.by_log.get(log, UpstreamIdentity())

    def note_founder(self, log: str, label: str, site: str) -> None:
        """Note that a node of a cluster goes on with a single node's log."""
        self._note(log, label=label, site=site)

    def note_missing(self, log: str, missing: int) -> None:
        """Note the number of records that the upstream dropped before their transfer."""
        self._note(log, missing=missing)

    def note_missing_messages(self, log: str, messages: int) -> None:
        """Note the most messages of the upstream's queues that are neither in its log nor here."""
        self._note(log, missing_messages=messages)

    def note_begin(self, log: str, at_ms: int, *, is_whole: bool) -> None:
        """Note the begin of the transfer, of a whole log or of the rest of one."""
        self._note(log, history_from_ms=0 if is_whole else at_ms)

    def _note(self, log: str, **facts: object) -> None:
        known = self.by_log.setdefault(log, UpstreamIdentity())
        noted = msgspec.structs.replace(known, **facts)
        if noted != known:
            self.by_log[log] = noted
            self._save(log)

    def of_vhost(self, vhost: str) -> list[UpstreamIdentity]:
        """The identities of all logs of a vhost."""
        return [each for log, each in self.by_log.items() if vhost_of(log) == vhost]

    def missing_of(self, vhost: str) -> dict[str, int]:
        """The counts of a vhost's logs together: missing_records, missing_messages."""
        logs = self.of_vhost(vhost)
        return {
            "missing_records": sum(each.missing for each in logs),
            "missing_messages": sum(each.missing_messages for each in logs),
        }

    def forget(self, vhosts: list[str]) -> None:
        """Forget these vhosts, whose data are deleted."""
        gone = [log for log in self.by_log if vhost_of(log) in vhosts]
        for log in gone:
            del self.by_log[log]
        for vhost in vhosts:
            self._place_of(vhost).unlink(missing_ok=True)
        if gone and self._path.exists():
            write_document(self._path, self.by_log)

    def _save(self, log: str) -> None:
        if not self._is_shared:
            make_directory(self._path.parent)
            write_document(self._path, self.by_log)
            return
        vhost = vhost_of(log)
        make_directory(self._by_vhost)
        own = {name: each for name, each in self.by_log.items() if vhost_of(name) == vhost}
        write_document(self._place_of(vhost), own)

    def _place_of(self, vhost: str) -> Place:
        return self._by_vhost / f"{vhost_directory(vhost)}.json"


def _read(path: Place) -> dict[str, UpstreamIdentity]:
    try:
        return read_document(path, dict[str, UpstreamIdentity])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        raise StorageError(f"{path}: {error}; remove it and connect again") from error
