from __future__ import annotations

from leveret.cli.pids import pid


def test_a_pid_is_one_word_of_node_and_name() -> None:
    assert pid("n@h", "1.2.3.4:5 -> 6.7.8.9:10") == "<n@h.1.2.3.4:5-6.7.8.9:10>"
    assert pid("n@h", "1.2.3.4:5 -> 6.7.8.9:10 (2)") == "<n@h.1.2.3.4:5-6.7.8.9:10.2>"
    assert pid("n@h", "v/a queue") == "<n@h.v/a_queue>"
