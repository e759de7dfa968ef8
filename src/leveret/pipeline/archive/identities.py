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
    """The upstream's outgoing log is not the one that was transferred from."""

    def __init__(self, vhost: str) -> None:
        super().__init__(
            f"vhost '{vhost}': the upstream's outgoing log is another one than what is here came from: the vhost "
            "was deleted and made again, or this is another upstream; promote this standby, or delete what is "
            "here with delete_orphaned_data_on_standby_replication_downstream_cluster and it begins anew"
        )


class OtherEnd(PreconditionFailed):
    """The upstream's outgoing log is the one that was transferred from, and has lost the end of what is here."""

    def __init__(self, vhost: str, stored: int) -> None:
        super().__init__(
            f"vhost '{vhost}': the log is here up to offset {stored}, and the upstream's has others at the end of "
            "that: a follower that had not all of it was promoted there; promote this standby, which has what was "
            "lost, or delete what is here with delete_orphaned_data_on_standby_replication_downstream_cluster and "
            "it begins anew"
        )


class UpstreamIdentity(msgspec.Struct):
    """The origin of a vhost's data.

    Attributes:
        log_id: what the upstream calls the log, 0 when it does not say.
        missing: records that the upstream retains no more and that never came.
        missing_messages: at most so many that its queues still hold were in its log no more when the transfer began.
        history_from_ms: when the transfer began, by the clock here, if the log did not go back to its begin; else 0.
            How queues stood before is not known: what was settled by then never came.
        is_replaced: whether the upstream has another log by now, or one with another end.
    """

    log_id: int = 0
    missing: int = 0
    missing_messages: int = 0
    history_from_ms: int = 0
    is_replaced: bool = False


class UpstreamIdentities:
    """The file's content; whoever transfers is the only one to write it."""

    def __init__(self, data_dir: Place) -> None:
        """Read it.

        Raises:
            StorageError: it is damaged.
        """
        self._path: Place = data_dir / UPSTREAM_IDENTITIES
        try:
            self.by_vhost = read_document(self._path, dict[str, UpstreamIdentity])
        except FileNotFoundError:
            self.by_vhost = {}
        except (OSError, msgspec.DecodeError) as error:
            raise StorageError(f"{self._path}: {error}; remove it and connect again") from error

    def check(self, vhost: str, log_id: int, *, has_data: bool, lost_after: int | None = None) -> None:
        """Compare what the upstream calls its log; without data of the vhost, take its name over.

        Args:
            vhost: whose log.
            log_id: what the upstream calls it.
            has_data: whether anything came of it yet.
            lost_after: it is here up to that offset, and others are at the end of that by now; None: the same are.

        Raises:
            AnotherLog: what is here came from another one.
            OtherEnd: it lost the end of what is here.
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
        """What the upstream calls the log that the data of a vhost came from; 0 if that is not known."""
        return self.by_vhost.get(vhost, UpstreamIdentity()).log_id

    def note_missing(self, vhost: str, missing: int) -> None:
        """So many records in front of what the upstream retains never came."""
        known = self.by_vhost.setdefault(vhost, UpstreamIdentity())
        if known.missing != missing:
            known.missing = missing
            self._save()

    def missing(self, vhost: str) -> int:
        """So many records in front of what the upstream retains never came, when it was last heard."""
        return self.by_vhost.get(vhost, UpstreamIdentity()).missing

    def missing_messages(self, vhost: str) -> int:
        """At most so many messages of the upstream's queues are not here, and do not come."""
        return self.by_vhost.get(vhost, UpstreamIdentity()).missing_messages

    def note_missing_messages(self, vhost: str, messages: int) -> None:
        """At most so many messages that the upstream's queues hold are in its log no more, nor here."""
        known = self.by_vhost.setdefault(vhost, UpstreamIdentity())
        if known.missing_messages != messages:
            known.missing_messages = messages
            self._save()

    def history_from_ms(self, vhost: str) -> int:
        """How a vhost's queues stood before this never came; 0: what came goes back to the log's begin."""
        return self.by_vhost.get(vhost, UpstreamIdentity()).history_from_ms

    def note_begin(self, vhost: str, at_ms: int, *, is_whole: bool) -> None:
        """The transfer begins now, with a log that goes back to its begin or with the rest of one."""
        known = self.by_vhost.setdefault(vhost, UpstreamIdentity())
        history_from_ms = 0 if is_whole else at_ms
        if known.history_from_ms != history_from_ms:
            known.history_from_ms = history_from_ms
            self._save()

    def forget(self, vhosts: list[str]) -> None:
        """There is no data of these any more."""
        gone = [vhost for vhost in vhosts if self.by_vhost.pop(vhost, None) is not None]
        if gone:
            self._save()

    def _save(self) -> None:
        make_directory(self._path.parent)
        write_document(self._path, self.by_vhost)
