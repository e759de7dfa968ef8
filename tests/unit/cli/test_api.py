from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from leveret.cli.api import Api, CtlError, NodeUnreachable, NotFoundByApi, TimedOut, connect

Answer = Callable[[httpx.Request], httpx.Response]


def api(answer: Answer) -> Api:
    return Api(httpx.Client(transport=httpx.MockTransport(answer), base_url="http://node"), "the node")


def test_names_go_into_paths_encoded() -> None:
    paths: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.raw_path.decode())
        return httpx.Response(204)

    api(answer).put("queues", "/", "a/b ä?#%", body={})
    assert paths == ["/api/queues/%2F/a%2Fb%20%C3%A4%3F%23%25"]


def test_nodes_that_an_answer_leaves_out_are_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Quarantined messages of a node that stood still were exported as none, with status 0."""

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=[], headers={"leveret-unreachable": "b@host, c@host"})

    asked = api(answer)
    assert asked.get("queues") == asked.get("queues") == []
    list(asked.get_lines("messages"))
    told = "leveretctl: without b@host, c@host: no answer in time\n"
    assert capsys.readouterr() == ("", told)
    list(api(answer).get_lines("messages"))
    assert capsys.readouterr() == ("", told)


@pytest.mark.parametrize("name", [".", ".."])
def test_a_name_of_dots_does_not_lead_to_another_object(name: str) -> None:
    """The client would leave it out: a purge of the queue `.` would delete the queue `contents`."""
    paths: list[bytes] = []

    def answer(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.raw_path)
        return httpx.Response(204)

    api(answer).delete("queues", "v", name, "contents")
    assert paths == [b"/api/queues/v/" + name.replace(".", "%2E").encode() + b"/contents"]


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("maintenance", b"maintenance"),
        ("für Wartung", "für Wartung".encode()),
        ("two\nlines\r\n", b"two lines"),
        ("", b""),
    ],
)
def test_a_reason_is_sent_whatever_its_characters(given: str, sent: bytes) -> None:
    reasons: list[bytes] = []

    def answer(request: httpx.Request) -> httpx.Response:
        reasons.append(dict(request.headers.raw)[b"x-reason"])
        return httpx.Response(204)

    api(answer).delete_with_reason(given, "connections", "c")
    assert reasons == [sent]


def test_an_answer_that_is_no_json_is_told() -> None:
    with pytest.raises(CtlError, match="is this the address of an HTTP API"):
        api(lambda request: httpx.Response(200, text="<html>")).get("overview")
    with pytest.raises(CtlError, match="is this the address of an HTTP API"):
        list(api(lambda request: httpx.Response(200, text="<html>")).get_lines("divergent"))


@pytest.mark.parametrize(
    "url", ["http://user:hun/ter2@host:1", "http://user:hun#ter2@host:1", "user:hunter2@host"]
)
def test_a_url_that_is_none_is_not_repeated_because_it_may_have_a_password(url: str) -> None:
    with pytest.raises(CtlError, match="--url: expected") as caught, connect(None, url):
        pass
    assert "hun" not in str(caught.value)


@pytest.mark.parametrize(
    ("code", "status"),
    [(400, 65), (401, 77), (403, 77), (404, 65), (405, 65), (409, 65), (500, 70), (503, 69), (599, 70)],
)
def test_an_answer_that_is_an_error_becomes_an_exit_status(code: int, status: int) -> None:
    with pytest.raises(CtlError, match="because") as caught:
        api(lambda request: httpx.Response(code, json={"error": "e", "reason": "because"})).get("x")
    assert caught.value.status == status
    assert isinstance(caught.value, NotFoundByApi) == (code == 404)


@pytest.mark.parametrize(
    "content",
    [b"", b"<html>", b"[]", b'{"error": 1}', b'{"reason": "\xff"}', b"[" * 9_999],
    ids=["empty", "html", "list", "other", "no text", "deep"],
)
def test_an_error_without_a_reason_tells_its_status(content: bytes) -> None:
    with pytest.raises(CtlError, match="the node answered 502"):
        api(lambda request: httpx.Response(502, content=content)).get("x")


def test_what_is_not_there_may_be_nothing() -> None:
    assert api(lambda request: httpx.Response(404)).get_or_none("x") is None


def test_a_node_that_does_not_answer_is_named() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused")

    def hang(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("slow")

    with pytest.raises(NodeUnreachable, match="cannot reach the node: connection refused"):
        api(refuse).get("x")
    with pytest.raises(TimedOut, match="the node does not answer in time") as caught:
        api(hang).get("x")
    assert caught.value.status == 75


def test_an_answer_is_waited_for_as_long_as_the_operator_says() -> None:
    waited: list[float] = []

    def answer(request: httpx.Request) -> httpx.Response:
        waited.append(request.extensions["timeout"]["read"])
        return httpx.Response(200, json={})

    client = httpx.Client(transport=httpx.MockTransport(answer), base_url="http://node")
    Api(client, "the node", 7).get("x")
    Api(client, "the node").get("x")
    Api(client, "the node", 7).get_with_timeout(0.5, "x")
    assert waited == [7, 60, 0.5]


def test_a_stream_is_read_line_by_line() -> None:
    lines = [{"progress": 1}, {"summary": []}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    assert list(api(lambda request: httpx.Response(200, text=text)).stream("promote", body={})) == lines


@pytest.mark.parametrize("piece_bytes", [1, 7, 1000])
def test_only_a_line_feed_ends_a_line(piece_bytes: int) -> None:
    objects = [{"text": "one\u2028two\x85three"}, {}, {"text": "\n"}]
    octets = "\n".join(json.dumps(each, ensure_ascii=False) for each in objects).encode()
    pieces = [octets[start : start + piece_bytes] for start in range(0, len(octets), piece_bytes)]
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(f"{request.method} {request.url.raw_path.decode()}")
        return httpx.Response(200, content=iter(pieces))

    assert list(api(answer).get_lines("a", "b c", report="r 1")) == objects
    assert asked == ["GET /api/a/b%20c?report=r+1"]


def test_what_takes_its_time_is_waited_for() -> None:
    waited: list[float | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        waited.append(request.extensions["timeout"]["read"])
        return httpx.Response(200, content=request.content)

    client = httpx.Client(transport=httpx.MockTransport(answer), base_url="http://node")
    assert Api(client, "the node", 7).post_without_timeout("scrub", body={"a": 1}) == {"a": 1}
    assert waited == [None]


def test_a_stream_that_is_refused_tells_why() -> None:
    refused = httpx.Response(400, json={"reason": "not a downstream"})
    with pytest.raises(CtlError, match="not a downstream"):
        list(api(lambda request: refused).stream("promote", body={}))


def test_the_url_wins_over_the_data_directory(tmp_path: Path) -> None:
    with (
        connect(tmp_path, "http://u:p@127.0.0.1:1") as node,
        pytest.raises(NodeUnreachable, match=r"127\.0\.0\.1"),
    ):
        node.get("whoami")
