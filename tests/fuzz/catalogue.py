"""All targets, by name."""

from __future__ import annotations

from typing import Final

from tests.fuzz.codecs import CODECS
from tests.fuzz.documents import DOCUMENTS
from tests.fuzz.replication import REPLICATION
from tests.fuzz.sessions import SESSIONS
from tests.fuzz.target import Target

TARGETS: Final[dict[str, Target]] = {
    target.name: target for target in (*CODECS, *SESSIONS, *REPLICATION, *DOCUMENTS)
}
