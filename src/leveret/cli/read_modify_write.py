"""Commands that alter a part of a definition, of which the API takes the whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from leveret.cli.api import Api, EditConflict

Fields: TypeAlias = dict[str, Any]
_ATTEMPTS_MAX: Final = 20
"""Each but the last one failed because another operator succeeded."""


def read_modify_write(api: Api, *path: str, change: Callable[[Fields], Fields | None]) -> None:
    """Replace a definition by what `change` makes of it, or delete it if that is None.

    If somebody changes it between the read and the write, it is read and changed anew: no change is lost, and a
    definition that is deleted meanwhile stays deleted.

    Raises:
        NotFoundByApi: there is none.
        CtlError: the node refuses the change.
    """
    for attempt in range(1, _ATTEMPTS_MAX + 1):
        existing, tag = api.get_with_etag(*path)
        changed = change(existing)
        try:
            if changed is None:
                api.delete(*path, tag=tag)
            else:
                api.put(*path, body=changed, tag=tag)
            return
        except EditConflict:
            if attempt == _ATTEMPTS_MAX:
                raise
