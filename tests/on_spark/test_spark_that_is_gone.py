"""What is said of a Spark that does not answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

import meander as md
from meander.on_spark.jobs import SparkJobs, Started
from meander.on_spark.session import executors


def context(error: Exception) -> Any:
    def fail() -> None:
        raise error

    return SimpleNamespace(_jvm=object(), _jsc=SimpleNamespace(sc=fail))


def test_a_context_that_was_stopped_is_no_reason_to_try_again() -> None:
    with pytest.raises(md.SparkGone, match="Spark that the flow runs on was stopped; start the flow again"):
        executors(SimpleNamespace(_jvm=object(), _jsc=None))  # type: ignore[arg-type]


def test_a_jvm_that_has_ended_is_no_reason_to_try_again() -> None:
    with pytest.raises(md.SparkGone, match="its JVM does not answer; start the flow again"):
        executors(context(Py4JNetworkError("Answer from Java side is empty")))


def test_a_call_that_failed_may_succeed_later() -> None:
    with pytest.raises(md.Retryable, match="which executors there are"):
        executors(context(Py4JError("the listing was interrupted")))


class Spark:
    """Whatever is asked of it, it answers with itself, until it fails."""

    error: Exception | None = None

    def __getattr__(self, name: str) -> Spark:
        return self

    def __call__(self, *_: object) -> Spark:
        if self.error is not None:
            raise self.error
        return self


def test_an_epoch_is_tried_again_where_spark_did_not_take_it_and_not_where_spark_is_gone() -> None:
    spark = Spark()
    jobs = SparkJobs(spark)  # type: ignore[arg-type]
    spark.error = Py4JError("refused")
    with pytest.raises(md.Retryable, match="Spark did not take the tasks of an epoch: refused"):
        jobs.run_single([])
    spark.error = Py4JNetworkError("Answer from Java side is empty")
    for submit in (lambda: jobs.run_single([]), lambda: jobs.start_first_stage([], 1)):
        with pytest.raises(md.SparkGone, match="start the flow again"):
            submit()


def test_a_committed_epoch_does_not_fail_because_spark_has_ended_since() -> None:
    spark = Spark()
    jobs = SparkJobs(spark)  # type: ignore[arg-type]
    spark.error = Py4JNetworkError("Answer from Java side is empty")
    jobs.forget_shuffles()
    jobs.cancel()
    started = Started(spark, 1, spark, 1)
    started.cancel()
    assert started.is_over()
