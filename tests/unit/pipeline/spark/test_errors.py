from __future__ import annotations

from leveret.pipeline.spark.errors import TEXT_CHARS_MAX, cause_of

STREAM = """[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted due to stage failure:
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/x/worker.py", line 1, in main
    process()
leveret.pipeline.archive.manifest.TransferGap: vhost '/': transferred up to offset 5, a file that begins at 7 does not

\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:581)
Caused by: java.lang.Exception: something
"""


def test_the_cause_is_what_python_said() -> None:
    assert cause_of(Exception(STREAM)).startswith("TransferGap: vhost '/': transferred up to offset 5")


def test_without_a_stack_it_is_the_first_line_cut_to_a_length() -> None:
    assert cause_of(Exception("short\nlong")) == "short"
    assert len(cause_of(Exception("x" * 5000))) == TEXT_CHARS_MAX


def test_the_state_of_a_query_is_not_taken_for_its_cause() -> None:
    state = "=== Streaming Query ===\nIdentifier: transfer [id = bbf7e367]\nCurrent State: INITIALIZING"
    cause = "Python worker failed to connect back."
    assert cause_of(Exception(f"{cause}\n{state}\n\nJVM stacktrace:\norg.apache.spark.X: y")) == cause
    sentence = cause_of(Exception(f"Job aborted\njava.io.IOException: No space left on device\n{state}"))
    assert sentence == "IOException: No space left on device"


def test_the_cause_may_be_what_java_said() -> None:
    stack = "\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)\n"
    text = f"An error occurred while calling o123.start.\n: java.io.IOException: No space left on device\n{stack}"
    assert cause_of(Exception(text)) == "IOException: No space left on device"
