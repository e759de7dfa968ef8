"""The client of a node's HTTP API: over the node's own socket, or over TCP with a name and password.

`Api` knows paths and statuses, but no commands. Names in paths are encoded, also `/`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec

from leveret.cli import exits
from leveret.model.foreign_json import split_json
from leveret.model.path_part import path_part

CONTROL_SOCKET: Final = "control.sock"
CONNECT_TIMEOUT_S: Final = 5.0
TIMEOUT_S: Final = 60.0

_UNREACHABLE: Final = "leveret-unreachable"
_PATIENT: Final = httpx.Timeout(None, connect=CONNECT_TIMEOUT_S)

_EXITS: Final[dict[int, int]] = {
    HTTPStatus.UNAUTHORIZED: exits.NO_PERMISSION,
    HTTPStatus.FORBIDDEN: exits.NO_PERMISSION,
    HTTPStatus.SERVICE_UNAVAILABLE: exits.UNAVAILABLE,
}


class CtlError(Exception):
    """A command failed: its text is the one line for the operator, `status` the exit status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class NotFoundByApi(CtlError):
    """The named object does not exist."""


class EditConflict(CtlError):
    """The object is not the one that was read, or it exists and was to be new: nothing was changed."""


class TimedOut(CtlError):
    """The node accepts connections, but does not answer in time."""


class NodeUnreachable(CtlError):
    """No node answers at the address."""

    def __init__(self, text: str) -> None:
        super().__init__(exits.UNAVAILABLE, text)


class AnswerLost(NodeUnreachable):
    """The node was reached, and ended before its answer."""


class Api:
    """One node's HTTP API."""

    def __init__(self, client: httpx.Client, place: str, timeout_s: float | None = None) -> None:
        """`place` names the node in errors; an answer may take `timeout_s`, a minute by default."""
        self._client = client
        self._place = place
        self._quick = httpx.Timeout(timeout_s or TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        self._left_out: set[str] = set()

    def get(self, *parts: str, **query: str) -> Any:
        """The JSON document at a path.

        Raises:
            CtlError: refused, missing, or no node answers.
        """
        return _document(self._send("GET", parts, query=query or None))

    def get_with_etag(self, *parts: str) -> tuple[Any, str]:
        """As `get`, of a single definition, with the tag for `put` and `delete`."""
        response = self._send("GET", parts)
        # A node of an earlier version has no tags; then any object will do.
        return _document(response), response.headers.get("etag", "*")

    def get_without_timeout(self, *parts: str) -> Any:
        """As `get`, for answers whose time grows with the data."""
        return _document(self._send("GET", parts, timeout=_PATIENT))

    def get_with_timeout(self, timeout_s: float, *parts: str) -> Any:
        """As `get`, with a limit in time.

        Raises:
            TimedOut: it did not.
        """
        return _document(self._send("GET", parts, timeout=httpx.Timeout(timeout_s)))

    def get_or_none(self, *parts: str) -> Any:
        """As `get`; None if it does not exist."""
        try:
            return self.get(*parts)
        except NotFoundByApi:
            return None

    def verdict(self, *parts: str, **query: str) -> dict[str, Any]:
        """The result of a health check, passed or not."""
        response = self._request("GET", parts, query=query)
        if response.status_code != HTTPStatus.SERVICE_UNAVAILABLE:
            _check(response)
        document: dict[str, Any] = _document(response)
        if "status" not in document:
            _check(response)
        return document

    def put(self, *parts: str, body: object, tag: str | None = None, is_new: bool = False) -> None:
        """Create or replace; with `tag` only replace the definition that was read, with `is_new` only create.

        Raises:
            EditConflict: it is another one by now, or it exists.
        """
        headers = {b"if-none-match": b"*"} if is_new else _if_same(tag)
        self._send("PUT", parts, body=msgspec.json.encode(body), headers=headers)

    def put_without_timeout(self, *parts: str, body: object = None, **query: str) -> Any:
        """Act, however long it takes; the JSON document of the answer."""
        sent = b"" if body is None else msgspec.json.encode(body)
        return _document(self._send("PUT", parts, body=sent, query=query, timeout=_PATIENT))

    def put_text(self, *parts: str, text: str) -> None:
        """Create or replace from the operator's JSON; the node reports errors in it."""
        self._send("PUT", parts, body=text.encode())

    def post(self, *parts: str, body: object = None) -> Any:
        """Act; the JSON document of the answer, None if there is none."""
        return _document(self._send("POST", parts, body=b"" if body is None else msgspec.json.encode(body)))

    def post_without_timeout(self, *parts: str, body: object) -> Any:
        """As `post`, for answers whose time grows with the data."""
        return _document(self._send("POST", parts, body=msgspec.json.encode(body), timeout=_PATIENT))

    def post_text(self, *parts: str, text: bytes) -> None:
        """Act on a JSON document in text form."""
        self._send("POST", parts, body=text)

    def delete(self, *parts: str, tag: str | None = None, **query: str) -> None:
        """Remove; with `tag` only the definition that was read.

        Raises:
            EditConflict: it is another one by now.
        """
        self._send("DELETE", parts, query=query, headers=_if_same(tag))

    def delete_with_answer(self, *parts: str) -> Any:
        """Remove, however long it takes; the JSON document of the answer."""
        return _document(self._send("DELETE", parts, timeout=_PATIENT))

    def delete_with_reason(self, reason: str, *parts: str) -> None:
        """Remove, and give affected clients the reason."""
        self._send("DELETE", parts, headers={b"x-reason": " ".join(reason.split()).encode()})

    def stream(self, *parts: str, body: object) -> Generator[dict[str, Any]]:
        """Act, however long it takes; the JSON objects of the answer as they come, one a line."""
        return self._objects("POST", parts, body=msgspec.json.encode(body))

    def get_lines(self, *parts: str, **query: str) -> Generator[dict[str, Any]]:
        """The JSON objects at a path as they come, one a line, in any number."""
        return self._objects("GET", parts, query=query)

    def _objects(
        self, method: str, parts: tuple[str, ...], *, body: bytes = b"", query: dict[str, str] | None = None
    ) -> Generator[dict[str, Any]]:
        with (
            self._reaching(),
            self._client.stream(
                method, _path(parts), content=body, params=query, timeout=_PATIENT
            ) as response,
        ):
            if response.is_error:
                response.read()
                _check(response)
            self._warn_of_missing_nodes(response)
            for line in _lines(response.iter_bytes()):
                yield _read(line)

    def _send(self, method: str, parts: tuple[str, ...], **options: Any) -> httpx.Response:
        response = self._request(method, parts, **options)
        _check(response)
        self._warn_of_missing_nodes(response)
        return response

    def _warn_of_missing_nodes(self, response: httpx.Response) -> None:
        """Name nodes of a cluster whose part of the answer is missing, each once: it looks like a whole answer."""
        named = response.headers.get(_UNREACHABLE, "").split(", ")
        nodes = {each for each in named if each and each.isprintable()} - self._left_out
        self._left_out |= nodes
        if nodes:
            print(
                f"leveretctl: without {', '.join(sorted(nodes))}: no answer in time",
                file=sys.stderr,
            )

    def _request(
        self,
        method: str,
        parts: tuple[str, ...],
        *,
        body: bytes = b"",
        query: dict[str, str] | None = None,
        timeout: httpx.Timeout | None = None,
        headers: dict[bytes, bytes] | None = None,
    ) -> httpx.Response:
        sent = {**({b"content-type": b"application/json"} if body else {}), **(headers or {})}
        with self._reaching():
            return self._client.request(
                method,
                _path(parts),
                content=body,
                params=query,
                headers=sent,
                timeout=timeout or self._quick,
            )

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except httpx.TimeoutException:
            raise TimedOut(exits.RETRY, f"{self._place} does not answer in time") from None
        except (httpx.RemoteProtocolError, httpx.ReadError) as error:
            raise AnswerLost(f"{self._place} closed the connection before its answer: {error}") from None
        except httpx.HTTPError as error:
            raise NodeUnreachable(f"cannot reach {self._place}: {error}; is the node running?") from None


@contextmanager
def connect(data_dir: Path | None, url: str | None, timeout_s: float | None = None) -> Iterator[Api]:
    """The API of the node that is named by its data directory or its URL; the URL wins.

    No answer may take longer than `timeout_s`.

    Raises:
        CtlError: neither is given, or the directory is not a node's.
    """
    if url is not None:
        with _client(url) as client:
            yield Api(client, client.base_url.host, timeout_s)
        return
    if data_dir is None:
        raise CtlError(
            exits.USAGE, "name the node with --data-dir or --url, or set LEVERET_DATA_DIR or LEVERET_URL"
        )
    with _short_path(data_dir) as path:
        # A context for TLS, which is not used here, would take 20 ms to load its authorities.
        transport = httpx.HTTPTransport(uds=path, verify=False)
        with httpx.Client(transport=transport, base_url="http://node") as client:
            yield Api(client, f"the node of {data_dir}", timeout_s)


def _client(url: str) -> httpx.Client:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL()
    if parsed.scheme not in ("http", "https") or not parsed.host:
        # The text of httpx's error may have a part of the password in it.
        form = "http://USER:PASSWORD@HOST:PORT, with special characters of a password as %XX"
        raise CtlError(exits.USAGE, f"--url: expected {form}")
    return httpx.Client(base_url=parsed, trust_env=False, verify=parsed.scheme == "https")


@contextmanager
def _short_path(data_dir: Path) -> Iterator[str]:
    """The control socket's path; short, because the kernel takes only 107 octets."""
    try:
        descriptor = os.open(data_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NodeUnreachable(f"{data_dir} does not exist: no node has its data there") from None
    except OSError as error:
        raise CtlError(exits.NO_PERMISSION, f"{data_dir}: {error.strerror}") from None
    try:
        path = f"/proc/self/fd/{descriptor}/{CONTROL_SOCKET}"
        if not os.path.exists(path):
            raise NodeUnreachable(f"no node runs on {data_dir}: there is no {CONTROL_SOCKET}")
        yield path
    finally:
        os.close(descriptor)


def _if_same(tag: str | None) -> dict[bytes, bytes]:
    return {} if tag is None else {b"if-match": tag.encode()}


def _path(parts: tuple[str, ...]) -> str:
    if "" in parts:
        # An empty name would leave the parent's path: all users instead of one.
        raise NotFoundByApi(exits.DATA, "a name must not be empty")
    return "/api/" + "/".join(map(path_part, parts))


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Lines of an answer; only a line feed ends one, because JSON texts may hold other ends of lines."""
    existing: list[bytes] = []
    for piece in pieces:
        *ends, rest = piece.split(b"\n")
        for end in ends:
            yield b"".join((*existing, end))
            existing.clear()
        existing.append(rest)
    if any(existing):
        yield b"".join(existing)


def _document(response: httpx.Response) -> Any:
    return _read(response.content) if response.content else None


def _read(octets: bytes) -> Any:
    try:
        return split_json(octets, Any)
    except msgspec.DecodeError as error:
        text = f"the answer is no JSON ({error}): is this the address of an HTTP API?"
        raise CtlError(exits.DATA, text) from None


def _check(response: httpx.Response) -> None:
    """Raise for an error's answer."""
    if not response.is_error:
        return
    try:
        text = str(split_json(response.content, dict[str, Any])["reason"])
    except (msgspec.DecodeError, KeyError):
        text = f"the node answered {response.status_code} {response.reason_phrase}"
    if response.status_code == HTTPStatus.NOT_FOUND:
        raise NotFoundByApi(exits.DATA, text)
    if response.status_code == HTTPStatus.PRECONDITION_FAILED:
        raise EditConflict(exits.RETRY, text)
    otherwise = exits.SOFTWARE if response.is_server_error else exits.DATA
    raise CtlError(_EXITS.get(response.status_code, otherwise), text)
