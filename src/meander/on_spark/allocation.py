"""Requests executors from Spark's cluster manager, and releases them to it, for a ``Crew``.

Spark's ``ExecutorAllocationClient`` is the same call on a standalone master, ``local-cluster``,
YARN and Kubernetes: a total number to request, and names to release. A local Spark has no such
client, and with dynamic allocation Spark decides by itself: then slots follow the load among the
executors there are, and the log says so once.
"""

from __future__ import annotations

import contextlib
import logging

from py4j.protocol import Py4JError
from pyspark import SparkContext

from meander.clock import Clock
from meander.epochs.crew import Crew
from meander.epochs.placement import Placement

_LOG = logging.getLogger("meander")


class Manager:
    """Spark's cluster manager, as far as executors are concerned."""

    def __init__(self, context: SparkContext) -> None:
        jvm, self._scala = context._jvm, context._jsc.sc()
        assert jvm is not None
        self._utils, self._hash_map, self._array_list = jvm.PythonUtils, jvm.java.util.HashMap, jvm.java.util.ArrayList
        client = jvm.java.lang.Class.forName("org.apache.spark.ExecutorAllocationClient")
        self._backend = self._scala.schedulerBackend()
        self.cannot: str | None = None
        """Why no executor can be requested or released; None where that is possible."""
        if not client.isInstance(self._backend):
            self.cannot = f"master '{context.master}' can neither add nor remove executors"
        elif self._scala.executorAllocationManager().isDefined():
            self.cannot = "spark.dynamicAllocation.enabled is on, so Spark itself decides how many executors there are; turn it off"

    def request(self, total: int) -> bool:
        """Have so many, those there are included. False where Spark is stopping, or its master does not answer: asked again."""
        with contextlib.suppress(Py4JError):
            return bool(self._scala.requestTotalExecutors(total, 0, self._utils.toScalaMap(self._hash_map())))
        return False

    def release(self, executor: str) -> bool:
        """Let one go, unless it has something to do. The total must have been lowered before, or another comes in its place."""
        with contextlib.suppress(Py4JError):
            one = self._array_list()
            one.add(executor)
            return not self._backend.killExecutors(self._utils.toSeq(one), False, False, False).isEmpty()
        return False


def hire(context: SparkContext, placement: Placement, slots_per_executor: int | None, clock: Clock) -> Crew | None:
    """A crew where one is asked for and can be had; where it cannot, that is said."""
    if slots_per_executor is None:
        return None
    manager = Manager(context)
    if manager.cannot is not None:
        _LOG.warning(f"autoscale: {manager.cannot}: slots follow the load among the executors there are")
        return None
    return Crew(manager, placement, slots_per_executor, clock)
