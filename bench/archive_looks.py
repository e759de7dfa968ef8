"""The time of a look at a large archive: a dry run, the same as of a moment, and an inspection.

The archive is generated (`archives`), in 10,000 queues, with one unsettled message of a hundred in every file. Each job
is a process of the pipeline, as a downstream starts it, from its start to its end. The five questions are asked of the
inspected archive, by one Spark that has started (`archive_queries`).
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from bench.archives import BEGIN_MS, FILE_MS, QUEUES_OF_FILE, Shape, write_archive
from bench.client import LoadError
from bench.contenders import LEVERET, Node
from bench.rows import Reading, Row, Scenario, Settings, Target

MESSAGES: Final = 100_000_000
INSPECTED: Final = 10_000_000
QUICK_PART: Final = 100
LOOK_S_MAX: Final = 15.0
INSPECTION_S_MAX: Final = 30.0
JOB_TIMEOUT_S: Final = 600.0
QUESTIONS: Final = {
    "pending": "pending messages by queue and age",
    "published": "what was published in 20 seconds",
    "acked": "what was acked in 20 seconds",
    "largest": "the ten largest messages",
    "rates": "rates by routing key",
}


def _run(node: Node, settings: Settings) -> dict[str, Reading]:
    part = QUICK_PART if settings.quick else 1
    large, small = Shape(MESSAGES // part), Shape(INSPECTED // part)
    found: dict[str, Reading] = {}
    place = settings.folder.resolve() / "generated-archive"
    try:
        write_archive(place, large)
        moment_ms = BEGIN_MS + large.files // 2 * FILE_MS
        for name, selection in (("archive-dry-run", {}), ("archive-as-of", {"as_of_ms": moment_ms})):
            took_s, done = _look("recover", place, dry_run=True, scratch=name, **selection)
            messages = sum(row["message_count"] for row in done["queues"])
            if name == "archive-dry-run" and messages != large.unsettled:
                raise LoadError(f"a dry run counted {messages} messages of {large.unsettled}")
            found[name] = Reading(took_s, details={"messages": float(messages)})
        shutil.rmtree(place)
        write_archive(place, small)
        took_s, done = _look("inspect", place)
        messages = sum(row["messages"] for row in done["rows"])
        if messages != small.messages:
            raise LoadError(f"an inspection counted {messages} messages of {small.messages}")
        found["archive-inspection"] = Reading(took_s, details={"messages": float(messages)})
        found |= _asked(place, small)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return found


def _look(task: str, place: Path, **wanted: Any) -> tuple[float, dict[str, Any]]:
    """Run a job; return its seconds and its last event."""
    job = {"data_dir": str(place), **wanted}
    if task == "recover":
        job |= {"endpoint": "", "credentials": {"username": "", "password": ""}}
    begun = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", "leveret.pipeline", task],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        # The end of its input would end the job.
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        lines = process.stdout.read().splitlines()
        process.wait(JOB_TIMEOUT_S)
    event: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    if event.get("event") != "done":
        raise LoadError(f"{task}: {event.get('error', 'the job ended without a result')}")
    return time.monotonic() - begun, event


def _asked(place: Path, shape: Shape) -> dict[str, Reading]:
    """Ask the five questions of the page about tables; each queue has messages that are pending."""
    argv = [sys.executable, "-m", "bench.archive_queries", str(place)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=JOB_TIMEOUT_S, check=False)
    if done.returncode:
        raise LoadError(f"bench.archive_queries: {done.stderr.strip().splitlines()[-1:]}")
    answers: dict[str, tuple[float, int]] = json.loads(done.stdout.splitlines()[-1])
    queues = min(shape.queues, shape.files * QUEUES_OF_FILE)
    if answers["pending"][1] != queues:
        raise LoadError(f"{answers['pending'][1]} of {queues} queues have pending messages")
    return {
        f"archive-{name}": Reading(took_s, details={"rows": rows}) for name, (took_s, rows) in answers.items()
    }


ARCHIVE_LOOKS: Final = Scenario(
    (
        Row(
            "archive-dry-run",
            f"dry run over an archive of {MESSAGES:,} messages, 99 % settled",
            "s",
            False,
            Target("value", LOOK_S_MAX),
        ),
        Row(
            "archive-as-of", "the same as of a moment in its middle", "s", False, Target("value", LOOK_S_MAX)
        ),
        Row(
            "archive-inspection",
            f"inspection of an archive of {INSPECTED:,} messages",
            "s",
            False,
            Target("value", INSPECTION_S_MAX),
        ),
        *(
            Row(f"archive-{name}", f"{title}, by Spark's SQL, {INSPECTED:,} messages archived", "s", False)
            for name, title in QUESTIONS.items()
        ),
    ),
    _run,
    once=True,
    brokers=(LEVERET,),
)
