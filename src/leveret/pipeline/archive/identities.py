"""The identities of the logs in the archive: a log that replaced another one does not continue it.

`<data_dir>/origins.json` has, by vhost, the name of the upstream's outgoing log, and the numbers of missing
records: those that the upstream's retention dropped before the transfer, or before the log began. A loss of the
file loses only this check.
"""

from __future__ import annotations

from typing import Final

import msgspec

from leveret.model.errors import PreconditionFailed, StorageError
from leveret.pipeline.archive.documents import read_document, write_document
from leveret.pipeline.files.files import Place, make_directory

UPSTREAM_IDENTITIES: Final = "origins.json"


class AnotherLog(PreconditionFailed):
    """The upstream's outgoing log is another one than that of the transferred records."""

    def __init__(self, vhost: str) -> None:
        super().__init__(
            f"vhost '{vhost}': the upstream's outgoing log is another one than that of the transferred "
            "records: the vhost "
            "was deleted and made again, or this is another upstream; promote this standby, or delete what is "
            "here with delete_orphaned_data_on_standby_replication_downstream_cluster and it begins anew"
        )


class OtherEnd(PreconditionFailed):
    """The upstream's outgoing log is that of the transferred records, but has lost the end of them."""

    def __init__(self, vhost: str, stored: int) -> None:
        super().__init__(
            f"vhost '{vhost}': the log is here up to offset {stored}, and the upstream's has others at the end of "
            "that: a follower that had not all of it was promoted there; promote this standby, which has what was "
            "lost, or delete its data with delete_orphaned_data_on_standby_replication_downstream_cluster and "
            "it begins anew"
        )


class UpstreamIdentity(msgspec.Struct):
    """The origin of a vhost's data.

    Attributes:
        log_id: the log's name at the upstream, 0 if unknown.
        missing: the number of records that the upstream dropped before their transfer.
        missing_messages: the most messages of its queues that its log had dropped when the transfer began.
        history_from_ms: the time of the transfer's begin, by the clock here, if the log had dropped records by then;
            else 0. The state of queues before that is unknown, because settlements are missing.
        is_replaced: whether the upstream has another log by now, or one with another end.
    """

    log_id: int = 0
    missing: int = 0
    missing_messages: int = 0
    history_from_ms: int = 0
    is_replaced: bool = False


class UpstreamIdentities:
    """The content of the file; only the transfer writes it."""

    def __init__(self, data_dir: Place) -> None:
        """Read the file.

        Raises:
            StorageError: the file is damaged.
        """
        self._path: Place = data_dir / UPSTREAM_IDENTITIES
        try:
            self.by_vhost = read_document(self._path, dict[str, UpstreamIdentity])
        except FileNotFoundError:
            self.by_vhost = {}
        except (OSError, msgspec.DecodeError) as error:
            raise StorageError(f"{self._path}: {error}; remove it and connect again") from error

    def check(self, vhost: str, log_id: int, *, has_data: bool, lost_after: int | None = None) -> None:
        """Compare the log's name at the upstream with the stored one; without data of the vhost, take the new one.

        Args:
            vhost: the log's vhost.
            log_id: the log's name at the upstream.
            has_data: whether records of it are here.
            lost_after: the offset up to which it is here, if the upstream's has other records at that end; None
                otherwise.

        Raises:
            AnotherLog: the records here are another log's.
            OtherEnd: it lost the end of the records here.
        """
        known = self.by_vhost.setdefault(vhost, UpstreamIdentity())
        before = msgspec.structs.replace(known)
        if not has_data or not known.log_id:
            known.log_id, known.missing = log_id, 0 if not has_data else known.missing
        is_another = known.log_id != log_id
        known.is_replaced = is_another or lost_after is not None
        if known != before:
            self._save()
        if is_another:
            raise AnotherLog(vhost)
        if lost_after is not None:
            raise OtherEnd(vhost, lost_after)

    def log_id(self, vhost: str) -> int:
        """The name, at the upstream, of the log that a vhost's data came from; 0 if unknown."""
        return self.by_vhost.get(vhost, UpstreamIdentity()).log_id

    def note_missing(self, vhost: str, missing: int) -> None:
        """Note the number of records that the upstream dropped before their transfer."""
        known = self.by_vhost.setdefault(vhost, UpstreamIdentity())
        if known.missing != missing:
            known.missing = missing
            self._save()

    def missing(self, vhost: str) -> int:
        """The number of records that the upstream had dropped before their transfer, by its last report."""
        return self.by_vhost.get(vhost, UpstreamIdentity()).missing

    def missing_messages(self, vhost: str) -> int:
        """The most messages of the upstream's queues that are not here, and will not come."""
        return self.by_vhost.get(vhost, UpstreamIdentity()).missing_messages

    def note_missing_messages(self, vhost: str, messages: int) -> None:
        """Note the most messages of the upstream's queues that are neither in its log nor here."""
        known = self.by_vhost.setdefault(vhost, UpstreamIdentity())
        if known.missing_messages != messages:
            known.missing_messages = messages
            self._save()

    def history_from_ms(self, vhost: str) -> int:
        """The time before which the state of a vhost's queues never came.

        0: the transfer has the log from its begin.
        """
        return self.by_vhost.get(vhost, UpstreamIdentity()).history_from_ms

    def note_begin(self, vhost: str, at_ms: int, *, is_whole: bool) -> None:
        """Note the begin of the transfer, of a whole log or of the rest of one."""
        known = self.by_vhost.setdefault(vhost, UpstreamIdentity())
        history_from_ms = 0 if is_whole else at_ms
        if known.history_from_ms != history_from_ms:
            known.history_from_ms = history_from_ms
            self._save()

    def forget(self, vhosts: list[str]) -> None:
        """Forget these vhosts, whose data are deleted."""
        gone = [vhost for vhost in vhosts if self.by_vhost.pop(vhost, None) is not None]
        if gone:
            self._save()

    def _save(self) -> None:
        make_directory(self._path.parent)
        write_document(self._path, self.by_vhost)
