"""What a failed Spark job is said to have failed with."""

from __future__ import annotations

from meander.on_spark.jobs import reason_of

ABORTED = (
    "Job aborted due to stage failure: Task 0 in stage 9.0 failed 4 times, most recent failure: Lost task 0.3 in stage 9.0 (TID 21) "
    "(localhost executor driver): {}\n\tat org.apache.spark.api.python.PythonRunner.read(PythonRunner.scala:1136)\n\nDriver stacktrace:"
)
CRASHED = "Python worker exited unexpectedly (crashed). Consider setting 'spark.python.worker.faulthandler.enabled' to 'true'."
OUTERMOST = "Exception thrown by job"


def test_a_worker_that_was_killed_is_said_to_have_crashed_and_where() -> None:
    reason = reason_of([OUTERMOST, ABORTED.format(f"org.apache.spark.SparkException: {CRASHED}"), CRASHED, "java.io.EOFException"])
    assert reason.startswith("a Python worker exited unexpectedly (crashed) in stage 9, task 0, 4 times in a row; ")


def test_a_python_traceback_is_shown_as_it_is() -> None:
    traceback = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nValueError: no'
    assert reason_of([OUTERMOST, ABORTED.format(f"org.apache.spark.api.python.PythonException: {traceback}\n")]) == traceback


def test_any_other_failure_of_a_task_is_named_with_its_stage() -> None:
    reason = reason_of([OUTERMOST, ABORTED.format("ExecutorLostFailure (executor 1 exited)")])
    assert reason.startswith("task 0 of stage 9 failed 4 times, the last time with: ")
    assert reason.endswith("ExecutorLostFailure (executor 1 exited)")


def test_what_has_no_stage_is_the_innermost_message() -> None:
    assert (
        reason_of([OUTERMOST, "Job 7 cancelled because SparkContext was shut down"]) == "Job 7 cancelled because SparkContext was shut down"
    )
    assert reason_of([OUTERMOST]) == OUTERMOST
