"""`/`: a page for browsers, with links to the rest. It has no data of the node."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

_PAGE: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Leveret</title>
<style>body { font: 16px/1.5 sans-serif; max-width: 40em; margin: 3em auto; padding: 0 1em }</style>
</head>
<body>
<h1>Leveret</h1>
<p>A message broker that RabbitMQ's clients speak to. RabbitMQ's management page stands here when
<code>management.ui.path</code> names its files.</p>
<ul>
<li><a href="api/overview">api/overview</a>: where RabbitMQ's HTTP API begins; it asks for a user's name and password.
The API of RabbitMQ 3.13 is its documentation.</li>
<li><a href="metrics">metrics</a>, <a href="metrics/per-object">metrics/per-object</a>: for Prometheus, by RabbitMQ's
names.</li>
<li><code>leveretctl help</code> on the machine of the node: the commands of RabbitMQ's tools.</li>
</ul>
</body>
</html>
"""
_HEADERS: Final = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}


async def show(request: Request) -> Response:
    """The page; its links are relative, so a prefix of paths does not matter."""
    return HTMLResponse(_PAGE, headers=_HEADERS)


ROUTES = [Route("/", show, methods=["GET"])]
