"""The transcripts of replication say what nodes say to each other now."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from leveret.testing.transcripts.script import StoryLine, read, written

STORIES = Path(__file__).parents[3] / "transcripts"


@pytest.mark.process
@pytest.mark.timeout(600)
def test_nodes_say_what_the_transcripts_say() -> None:
    assert len(list(STORIES.glob("*/*.txt"))) >= 40
    done = subprocess.run(
        [sys.executable, "-m", "leveret.testing.transcripts", str(STORIES), "--check"],
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, (
        f"make transcripts writes them anew\n{done.stdout[-8000:]}{done.stderr[-4000:]}"
    )


def test_a_story_is_written_as_it_was_read() -> None:
    text = "# A comment.\n\nkill n1\n    etcd      n2 leads\n    n2 > n3   has q 0-1\npublish q 1\n"
    lines = read(text)
    assert lines[2] == StoryLine("kill n1", ["etcd      n2 leads", "n2 > n3   has q 0-1"])
    assert [line.text for line in lines if line.is_command] == ["kill n1", "publish q 1"]
    assert written(lines) == text
