from __future__ import annotations

from pathlib import Path

import pytest

from bench.contenders import Checkout, make_leveret
from leveret.testing.network.ports import NotReady
from leveret.testing.servers import warm_start


def test_where_no_checkout_is_the_reason_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no checkout of Leveret"):
        Checkout(tmp_path)


@pytest.mark.process
def test_nodes_that_start_meanwhile_are_of_the_other_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in a benchmark, which starts Python for each node.
    monkeypatch.setattr(warm_start, "_enabled", False)
    package = tmp_path / "src" / "leveret"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('this is the other checkout')\n")
    node = make_leveret(tmp_path)
    with Checkout(tmp_path).running(), pytest.raises(NotReady, match="this is the other checkout"):
        node.start()
    node.close()
