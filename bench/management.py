"""Requests to a node's HTTP API, as guest."""

from __future__ import annotations

from typing import Final

import httpx

from bench.client import LOOPBACK, LoadError
from bench.contenders import Node

GUEST: Final = ("guest", "guest")
TIMEOUT_S: Final = 300.0


def call(node: Node, method: str, path: str, content: object = None) -> httpx.Response:
    """Send a request, with `content` as JSON; return the answer.

    Raises:
        LoadError: the API refused it, or did not answer.
    """
    url = f"http://{LOOPBACK}:{node.management_port}{path}"
    try:
        # To load the authorities for TLS would take longer than the request.
        answer = httpx.request(method, url, auth=GUEST, json=content, timeout=TIMEOUT_S, verify=False)
    except httpx.HTTPError as error:
        raise LoadError(f"{method} {path}: {type(error).__name__} {error}") from None
    if answer.is_error:
        raise LoadError(f"{method} {path}: {answer.status_code} {answer.text}")
    return answer
