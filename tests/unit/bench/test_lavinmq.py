from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench import contenders
from bench.lavinmq import PROGRAM, LavinNode

# As much of a server as the node's start looks at: it reads where to listen from its configuration.
STUB = f"""#!{sys.executable}
import configparser, socket, sys
if sys.argv[1] == "--version":
    print("LavinMQ 2.9.1")
    sys.exit()
config = configparser.ConfigParser()
config.read(sys.argv[2])
with socket.create_server((config["amqp"]["bind"], int(config["amqp"]["port"]))) as server:
    while True:
        peer, _ = server.accept()
        with peer:
            peer.recv(8)
            peer.sendall(bytes.fromhex("01000000000004000a000ace"))
"""


def test_where_none_is_on_the_path_it_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert contenders.present() == ["leveret", "rabbitmq"]
    assert contenders.unavailable("lavinmq") == "no lavinmq on the PATH"


@pytest.mark.process
def test_one_on_the_path_is_started_with_ports_and_data_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / PROGRAM
    program.write_text(STUB)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert contenders.present() == ["leveret", "rabbitmq", "lavinmq"]
    assert contenders.version("lavinmq") == "2.9.1"
    node = contenders.MAKERS["lavinmq"](tmp_path)
    assert isinstance(node, LavinNode)
    node.start()
    assert node.rss_bytes() > 0
    node.kill9()
    node.close()
    assert not node.home.exists()
