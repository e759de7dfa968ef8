"""Files of RabbitMQ's page, as its directory has them: these are stand-ins, `tests/browser` has the real ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import leveret
from leveret.management.http import page_files
from leveret.management.http.app import build_app, public_app
from leveret.management.http.page_files import NoPageFiles
from tests.unit.management.conftest import Client

if TYPE_CHECKING:
    from tests.unit.management.conftest import FakeNode


@pytest.fixture
def www(tmp_path: Path) -> Path:
    folder = tmp_path / "plugins" / "rabbitmq_management-3.10.8" / "priv" / "www"
    for name in ("js/tmpl", "api", "cli"):
        (folder / name).mkdir(parents=True)
    (folder / "index.html").write_text("<p>the page</p>")
    (folder / "js/main.js").write_text("run()")
    (folder / "js/tmpl/queue.ejs").write_text("<%= queue %>")
    (folder / "api/index.html").write_text("the API")
    (folder.parent / "secret").write_text("not for all")
    (folder / "js/link.js").symlink_to(folder.parent / "secret")
    return folder


@pytest.mark.parametrize("path", ["/www", "/opt/ui", "/srv/rabbitmq_management-3.10.8/priv/www"])
def test_a_page_may_be_in_any_directory_of_the_root(path: str) -> None:
    assert page_files._of_streams(Path(path)) == []


def client(node: FakeNode, path: Path, **options: Any) -> Client:
    node.config = replace(node.config, management=replace(node.config.management, ui_path=path, **options))
    return Client(public_app(build_app(node)), ("guest", "secret"))


def test_the_page_needs_no_login_and_the_api_beside_it_does(node: FakeNode, www: Path) -> None:
    known = client(node, www)
    nobody = Client(public_app(build_app(node)))
    assert nobody.get("/").text == "<p>the page</p>"
    assert nobody.get("/api/overview").status_code == 401
    assert known.get("/api/whoami").json()["name"] == "guest"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html"),
        ("/js/main.js", "text/javascript"),
        ("/js/tmpl/queue.ejs", "application/octet-stream"),
    ],
)
def test_a_file_has_its_kind_and_headers_that_keep_strangers_out(
    node: FakeNode, www: Path, path: str, kind: str
) -> None:
    reply = client(node, www).get(path)
    assert reply.headers["content-type"].partition(";")[0] == kind
    assert "frame-ancestors 'self'" in reply.headers["content-security-policy"]
    assert "http" not in reply.headers["content-security-policy"]
    assert reply.headers["x-content-type-options"] == "nosniff"


def test_a_browser_that_has_a_file_is_not_sent_it_again(node: FakeNode, www: Path) -> None:
    known = client(node, www)
    first = known.get("/js/main.js")
    assert first.headers["cache-control"] == "no-cache"
    second = known.request("GET", "/js/main.js", headers={"if-none-match": first.headers["etag"]})
    assert (second.status_code, second.content) == (304, b"")
    (www / "js/main.js").write_text("run(now)")
    third = known.request("GET", "/js/main.js", headers={"if-none-match": first.headers["etag"]})
    assert (third.status_code, third.text) == (200, "run(now)")


@pytest.mark.parametrize(
    "path",
    [
        "/../secret",
        "/js/../../secret",
        "/js/%2e%2e/%2e%2e/secret",
        "/..%2fsecret",
        "//etc/passwd",
        "/js/link.js",
        "/js",
        "/js/",
        "/js/tmpl",
        "/" + "x" * 5000,
        "/%00",
        "/js/main.js/more",
        "/api/nothing",
    ],
)
def test_there_is_no_other_file_and_no_list_of_files(node: FakeNode, www: Path, path: str) -> None:
    reply = client(node, www).get(path)
    assert reply.status_code == 404
    assert reply.json() == {"error": "Object Not Found", "reason": "Not Found"}


def test_nothing_can_be_put_beside_the_files(node: FakeNode, www: Path) -> None:
    for method in ("PUT", "POST", "DELETE", "PATCH"):
        assert client(node, www).request(method, "/js/main.js").status_code == 404


def test_links_to_directories_lead_to_their_index_behind_a_prefix_too(node: FakeNode, www: Path) -> None:
    plain = client(node, www)
    assert plain.get("/api/").headers["location"] == "/api/index.html"
    assert plain.get("/api/index.html").text == "the API"
    prefixed = client(node, www, path_prefix="/broker")
    assert prefixed.get("/broker").headers["location"] == "/broker/"
    assert prefixed.get("/broker/").text == "<p>the page</p>"
    assert prefixed.get("/broker/api").headers["location"] == "/broker/api/index.html"


def test_a_star_stands_for_a_version(node: FakeNode, www: Path, tmp_path: Path) -> None:
    path = tmp_path / "plugins" / "rabbitmq_management-*" / "priv" / "www"
    assert client(node, path).get("/").text == "<p>the page</p>"


def test_a_place_without_a_page_is_refused_with_the_remedy(node: FakeNode, www: Path, tmp_path: Path) -> None:
    (tmp_path / "rabbitmq_management-3.8.0.ez").write_bytes(b"PK")
    other = tmp_path / "plugins" / "rabbitmq_management-4.0.0" / "priv" / "www"
    other.mkdir(parents=True)
    for path, said in {
        www / "nowhere": "there is no such directory",
        www / "index.html": "is not a directory: name the directory priv/www",
        www / "js": "has no index.html: name the directory priv/www",
        tmp_path / "rabbitmq_management-3.8.0.ez": "is an archive: unpack it with `unzip`",
        tmp_path / "plugins" / "*" / "priv" / "www": f"name one of these: {www}, {other}",
    }.items():
        with pytest.raises(NoPageFiles, match=r"management\.ui\.path") as refused:
            client(node, path)
        assert said in str(refused.value)


def test_a_page_of_rabbitmq_4_gets_a_version_and_the_script_that_its_files_leave_out(
    node: FakeNode, www: Path
) -> None:
    assert client(node, www).get("/api/version").json() == leveret.__version__
    assert client(node, www).get("/js/oidc-oauth/bootstrap.js").status_code == 404
    (www / "js/oidc-oauth").mkdir()
    (www / "js/oidc-oauth/helper.js").write_text("export function set_oauth_settings() {}")
    (www / "index.html").write_text("<script src='js/oidc-oauth/bootstrap.js'></script>")
    assert "oauth_initialize(" in client(node, www).get("/js/oidc-oauth/bootstrap.js").text
    (www / "index.html").write_text('<script src="js/oidc-oauth/bootstrap.js" type="module"></script>')
    reply = client(node, www).get("/js/oidc-oauth/bootstrap.js")
    assert "import * as helper from './helper.js'" in reply.text
    assert reply.headers["content-type"].startswith("text/javascript")
    (www / "js/oidc-oauth/bootstrap.js").write_text("mine()")
    assert client(node, www).get("/js/oidc-oauth/bootstrap.js").text == "mine()"


def test_pages_of_streams_are_there_if_their_plugin_stands_beside(node: FakeNode, www: Path) -> None:
    assert client(node, www).get("/api/extensions").json() == [{"javascript": "dispatcher.js"}]
    beside = www.parents[2] / "rabbitmq_stream_management-3.10.8" / "priv" / "www" / "js"
    beside.mkdir(parents=True)
    (beside / "stream.js").write_text("streams()")
    known = client(node, www)
    assert known.get("/api/extensions").json() == [
        {"javascript": "dispatcher.js"},
        {"javascript": "stream.js"},
    ]
    assert known.get("/js/stream.js").text == "streams()"
    assert known.get("/js/main.js").text == "run()"
    (beside / "stream_management-ejs.js").write_text("templates()")
    extension = client(node, www).get("/api/extensions").json()[1]
    assert extension == {"javascript": ["stream_management-ejs.js", "stream.js"]}
