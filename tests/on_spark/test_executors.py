"""What is said of the executors of a Spark that does not answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

import meander as md
from meander.on_spark.session import executors


def context(error: Exception) -> Any:
    def fail() -> None:
        raise error

    return SimpleNamespace(_jvm=object(), _jsc=SimpleNamespace(sc=fail))


def test_a_context_that_was_stopped_is_no_reason_to_try_again() -> None:
    with pytest.raises(md.ConfigError, match="Spark that the flow runs on was stopped; start the flow again"):
        executors(SimpleNamespace(_jvm=object(), _jsc=None))  # type: ignore[arg-type]


def test_a_jvm_that_has_ended_is_no_reason_to_try_again() -> None:
    with pytest.raises(md.ConfigError, match="its JVM does not answer; start the flow again"):
        executors(context(Py4JNetworkError("Answer from Java side is empty")))


def test_a_call_that_failed_may_succeed_later() -> None:
    with pytest.raises(md.Retryable, match="which executors there are"):
        executors(context(Py4JError("the listing was interrupted")))
