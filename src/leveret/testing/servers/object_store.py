"""An object store that speaks S3, in this process, behind a socket like a real one.

    with ObjectStore() as store:
        store.environment   # variables of its clients: AWS_ENDPOINT_URL and the rest
        store.new_bucket()  # URI of an empty bucket
        store.new_place()   # URI of a place in a new bucket

The store is moto's. It supports conditional requests, on which the archive's manifest depends. `knows_conditions` and
`is_down` make it a store without them, or a store that is down.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import httpx
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

CONDITION = "HTTP_IF_NONE_MATCH"


class _QuietHandler(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        """Log no requests."""


class ObjectStore:
    """The server; it runs in a `with` block.

    Attributes:
        knows_conditions: whether it obeys `If-None-Match`; if not, it ignores the header, as some stores do.
        is_down: whether it answers every request with 503.
        requests: method and path of each received request.
    """

    def __init__(self) -> None:
        self.knows_conditions = True
        self.is_down = False
        self.requests: list[tuple[str, str]] = []
        self._one_at_a_time = threading.Lock()
        self._store = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=_QuietHandler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="object store", daemon=True)

    @property
    def url(self) -> str:
        """The URL of the listener."""
        return f"http://127.0.0.1:{self._server.port}"

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of its clients."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "standby",
            "AWS_SECRET_ACCESS_KEY": "secret",
        }

    def new_bucket(self, scheme: str = "s3") -> str:
        """Make a bucket; return its URI."""
        name = f"bucket-{secrets.token_hex(6)}"
        httpx.put(f"{self.url}/{name}").raise_for_status()
        return f"{scheme}://{name}"

    def new_place(self) -> str:
        """Return the URI of a place in a new bucket, as an operator may give it for an archive."""
        return self.new_bucket("s3a") + "/archives/eu 2"

    @contextmanager
    def outage(self) -> Iterator[None]:
        """Be down for the block."""
        self.is_down = True
        try:
            yield
        finally:
            self.is_down = False

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        self.requests.append((environ["REQUEST_METHOD"], environ["PATH_INFO"]))
        if self.is_down:
            start_response("503 Service Unavailable", [("Content-Length", "0")])
            return []
        if not self.knows_conditions:
            environ.pop(CONDITION, None)
        # One request at a time: a put into moto closes the old content while another request may still read it.
        with self._one_at_a_time:
            return list(self._store(environ, start_response))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
