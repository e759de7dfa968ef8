"""The page with its scripts and styles, which ship with the package, as answers."""

from __future__ import annotations

from importlib import resources
from typing import Final

from starlette.responses import Response

_KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


class ConsoleFiles:
    """All shipped files, in memory: a browser's request never becomes a path."""

    def __init__(self) -> None:
        """Read the files."""
        self._files: dict[str, tuple[bytes, str]] = {}
        for file in (resources.files("leveret.console") / "page").iterdir():
            kind = _KINDS.get(file.name[file.name.rfind(".") :])
            if kind is not None:
                self._files[file.name] = (file.read_bytes(), kind)

    def answer(self, name: str) -> Response | None:
        """Return a file; None if none has this name. Browsers request it each time, so an upgrade shows at once."""
        found = self._files.get(name)
        if found is None:
            return None
        return Response(found[0], media_type=found[1], headers={"cache-control": "no-cache"})
