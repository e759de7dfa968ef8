"""Serves RabbitMQ's own management page from files of the operator, such as those of Debian's package.

The page is a program in the browser that uses the HTTP API as any client does, with the name and password that its
user types. So its files are not secret, and are served to all.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Callable
from http import HTTPStatus
from os import PathLike, stat_result
from pathlib import Path
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

import leveret
from leveret.management.request.replies import READS, json_reply
from leveret.model.errors import ConfigError

_INDEX: Final = "index.html"
_SETTING: Final = "management.ui.path"
_WITH_INDEX: Final = ("api", "cli")
"""The directories that the page links to: RabbitMQ's description of the API, and its command-line tool."""
OWN_SCRIPT: Final = "dispatcher.js"
_STREAM_SCRIPTS: Final = ("stream_management-ejs.js", "stream.js")
"""The scripts of the page for streams; the first only since RabbitMQ 4.3."""
_LOGIN_HELPER: Final = "js/oidc-oauth/helper.js"
_LOGIN_SCRIPT: Final = "js/oidc-oauth/bootstrap.js"
_AS_MODULE: Final = """\
import * as helper from './helper.js';
helper.set_oauth_settings({oauth_enabled: false});
Object.assign(window, helper);
"""
_AS_SCRIPT: Final = "window.oauth_initialize_if_required = () => oauth_initialize({oauth_enabled: false});\n"
_HEADERS: Final = {
    # Revalidated each time, and not sent again while unchanged: after an upgrade no page mixes versions.
    "cache-control": "no-cache",
    # The page's templates are compiled in the browser, hence `unsafe-eval`; it connects to this node only.
    "content-security-policy": (
        "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data:; object-src 'none'; base-uri 'self'; frame-ancestors 'self'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "SAMEORIGIN",
}


class NoPageFiles(ConfigError):
    """The configured place has no files of a page."""


def page_routes(path: Path, prefix: str) -> list[BaseRoute]:
    """The routes of the page in `path`, in which `*` matches any part of a name; they come last.

    The page of RabbitMQ 4 asks for a version before the login, and reloads itself when that changes.

    Args:
        path: the setting.
        prefix: the prefix of all paths at the listener, which the routes' paths lack.

    Raises:
        NoPageFiles: there is no page, or more than one.
    """
    folder = _folder_of(path)
    files = _PageFiles([folder, *_of_streams(folder)], prefix)
    routes: list[BaseRoute] = [
        Route("/", files.first_page, methods=READS),
        Route("/api/version", lambda _: json_reply(leveret.__version__), methods=READS),
    ]
    script = _login_script(folder)
    if script is not None:
        routes.append(Route(f"/{_LOGIN_SCRIPT}", script, methods=READS))
    return [*routes, Mount("/", files)]


def _folder_of(path: Path) -> Path:
    found = sorted(glob.glob(str(path)))
    if not found:
        raise NoPageFiles(f"{_SETTING} = {path}: there is no such directory")
    if len(found) > 1:
        raise NoPageFiles(f"{_SETTING} = {path}: name one of these: {', '.join(found)}")
    folder = Path(found[0])
    if folder.suffix == ".ez":
        raise NoPageFiles(
            f"{_SETTING} = {folder} is an archive: unpack it with `unzip`, and name the directory priv/www in it"
        )
    if not folder.is_dir():
        raise NoPageFiles(
            f"{_SETTING} = {folder} is not a directory: name the directory priv/www of RabbitMQ's page"
        )
    if not (folder / _INDEX).is_file():
        raise NoPageFiles(
            f"{_SETTING} = {folder} has no {_INDEX}: name the directory priv/www of RabbitMQ's page"
        )
    return folder


def extension_scripts(path: Path) -> list[str | list[str]]:
    """The scripts that the page loads after its login, an extension each: its own pages, and those of streams."""
    found = _of_streams(_folder_of(path))
    scripts: list[str | list[str]] = [OWN_SCRIPT]
    for folder in found:
        there = [name for name in _STREAM_SCRIPTS if (folder / "js" / name).is_file()]
        scripts.append(there if len(there) > 1 else there[0])
    return scripts


def _of_streams(folder: Path) -> list[Path]:
    """The files of the plugin with the pages of streams, if they are beside the page's own, in the same version."""
    plugin = folder.parent.parent
    name, dash, version = plugin.name.partition("-")
    beside = plugin.parent / f"rabbitmq_stream_management{dash}{version}" / "priv" / "www"
    is_there = name == "rabbitmq_management" and (beside / "js" / _STREAM_SCRIPTS[-1]).is_file()
    return [beside] if is_there else []


def _login_script(folder: Path) -> Callable[[Request], Response] | None:
    """Serves the script that RabbitMQ since 3.12 generates: it says that there is no OAuth."""
    if not (folder / _LOGIN_HELPER).is_file() or (folder / _LOGIN_SCRIPT).is_file():
        return None
    is_module = re.search(
        rf"{_LOGIN_SCRIPT}.{{1,3}}type=.module", (folder / _INDEX).read_text("utf-8", "replace")
    )
    text = _AS_MODULE if is_module else _AS_SCRIPT
    return lambda _: Response(text, media_type="text/javascript", headers=_HEADERS)


class _PageFiles(StaticFiles):
    """The page's files, without others beside their directory, and without listings."""

    def __init__(self, folders: list[Path], prefix: str) -> None:
        """Serve each file from the first folder that has it."""
        super().__init__(directory=folders[0])
        self.all_directories = [*folders]
        self._prefix = prefix

    async def first_page(self, request: Request) -> Response:
        """The index; its links are relative, so its own path must end with a slash."""
        if not request.scope["raw_path"].endswith(b"/"):
            return RedirectResponse(f"{self._prefix}/")
        return await self.get_response(_INDEX, request.scope)

    async def get_response(self, path: str, scope: Scope) -> Response:
        """A file, for reading only; the API's own paths were matched before."""
        if scope["method"] not in READS:
            raise HTTPException(HTTPStatus.NOT_FOUND)
        if path in _WITH_INDEX:
            return RedirectResponse(f"{self._prefix}/{path}/{_INDEX}")
        return await super().get_response(path, scope)

    def file_response(
        self, full_path: str | PathLike[str], stat_result: stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        """A file's response with caching and security headers, also for a file that the browser has already."""
        reply = super().file_response(full_path, stat_result, scope, status_code)
        reply.headers.update(_HEADERS)
        return reply
