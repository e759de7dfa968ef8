from __future__ import annotations

import json
import logging
import re
import sys

from hypothesis import example, given
from hypothesis import strategies as st

from leveret.cli.log_lines import JsonLine, KeyValueLine


def record(message: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("leveret.runtime.node.node", logging.INFO, "", 0, message, arguments, None)


def failed() -> logging.LogRecord:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        made = record("failed name=%s", "a\nb")
        made.exc_info = sys.exc_info()
        return made


def test_an_event_has_time_level_room_name_and_fields() -> None:
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z level=info from=runtime\.node\.node queue_opened vhost=/ queue=q ms=7",
        KeyValueLine().format(record("queue_opened vhost=%s queue=%s ms=%d", "/", "q", 7)),
    )


def test_an_event_is_one_line_whatever_is_in_it() -> None:
    line = KeyValueLine().format(failed())
    assert "\n" not in line
    assert 'name="a\\nb"' in line
    assert 'ValueError: two\\nlines"' in line


def test_a_value_that_would_be_taken_for_something_else_is_quoted() -> None:
    line = KeyValueLine().format(record("closed reason=%s user=%s empty=%s", "no more", 'x" level=error', ""))
    assert line.endswith(r'closed reason="no more" user="x\" level=error" empty=""')


def test_an_event_whose_name_is_a_value_has_its_fields_too() -> None:
    event = record("%s vhost=%s error=%s", "standby_link_down", " v state=up", "it ended")
    assert KeyValueLine().format(event).endswith('standby_link_down vhost=" v state=up" error="it ended"')
    shown = json.loads(JsonLine().format(event))
    assert (shown["msg"], shown["vhost"], shown["error"]) == ("standby_link_down", " v state=up", "it ended")


def test_an_event_without_a_template_is_told_as_it_is() -> None:
    assert KeyValueLine().format(record("50% done\nand on")).endswith(" 50% done\\nand on")
    assert KeyValueLine().format(record("lost %s of %s", 1, 2)).endswith(" lost 1 of 2")
    assert (
        KeyValueLine().format(record("peer of %s, %s", "\x1b[2J", "\x9b")).endswith(r" peer of \x1b[2J, \x9b")
    )


def test_json_has_rabbitmqs_fields_and_the_events_own() -> None:
    shown = json.loads(
        JsonLine().format(record("queue_down vhost=%s n=%d action=stop level=%s", "/", 3, "x"))
    )
    assert shown.pop("time").endswith("Z")
    assert shown == {
        "level": "info",
        "from": "runtime.node.node",
        "msg": "queue_down",
        "action": "stop",
        "vhost": "/",
        "n": 3,
        "level_": "x",
    }


def test_json_keeps_a_traceback_on_its_line() -> None:
    line = JsonLine().format(failed())
    assert "\n" not in line
    assert json.loads(line)["traceback"].endswith("ValueError: two\nlines")


@given(st.text())
@example("of\u2028three\u2029ends\x85")
def test_text_outside_of_fields_begins_no_new_line_either(text: str) -> None:
    made = record("peer of %s, %s", text, text)
    assert len(KeyValueLine().format(made).splitlines()) == len(JsonLine().format(made).splitlines()) == 1
    assert json.loads(JsonLine().format(made))["msg"] == f"peer of {text}, {text}"


@given(st.text(), st.text())
@example("of\u2028three\u2029ends\x85", "")
def test_no_value_begins_a_new_line_or_a_new_field(first: str, second: str) -> None:
    made = record("event a=%s b=%s", first, second)
    line = KeyValueLine().format(made)
    assert len(line.splitlines()) == len(JsonLine().format(made).splitlines()) == 1
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", line + JsonLine().format(made)), "a terminal obeys some"
    found = re.search(r' event a=("(?:[^"\\]|\\.)*"|[^ "=]+) b=("(?:[^"\\]|\\.)*"|[^ "=]+)$', line)
    assert found is not None
    values = [json.loads(each) if each.startswith('"') else each for each in found.groups()]
    assert values == [first, second]
    assert [json.loads(JsonLine().format(made))[name] for name in "ab"] == [first, second]
