"""Meander: streams that change course without stopping. Stateful stream processing on Apache Spark, in Python.

This file has the public names and nothing else. Each folder is a room, and its docstring says what it
owns, what it may import, and where to begin reading. ``docs/architecture.md`` has the map.

May import: the rooms that have public names, and none that imports PySpark before it is needed.
Begin with ``flow.py``, then ``run.py``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from meander.aggregates import Agg, Aggregator
from meander.aggregates import kinds as _aggregates
from meander.aggregates.kinds import *  # noqa: F403  # its __all__ is the one list of aggregates
from meander.connect.console import console
from meander.connect.discard import discard
from meander.connect.files import files
from meander.connect.foreach_batch import foreach_batch
from meander.connect.generator import generator
from meander.connect.memory import memory
from meander.connect.partitioned import parquet
from meander.errors import (
    BadInput,
    Busy,
    ConfigError,
    Corrupted,
    Divergent,
    Fenced,
    FlowError,
    MeanderError,
    Rejected,
    Retryable,
    SparkGone,
)
from meander.familiar import names as _names
from meander.flow import ConnectedStreams, Flow, KeyedStream, Stream, WindowedStream
from meander.outcomes import Migrated, Progress, Rescaled
from meander.plan.change.become import Become
from meander.plan.change.effects import Effects
from meander.plan.change.modify import Insert, Remove, Replace
from meander.plan.counts import count_window
from meander.plan.sessions import session
from meander.plan.unplaced import aggregate, filter, map_batches, process, select, side, watermark, with_columns
from meander.plan.windows import cumulating, sliding, tumbling
from meander.processor import Processor, list_of, map_of, value
from meander.replicate.handle import Replicas
from meander.run import Run
from meander.settings import Autoscale, autoscale
from meander.state.reading import read_dead_letters
from meander.task.reading import read_state
from meander.version import VERSION as _VERSION

if TYPE_CHECKING:
    from meander.connect.spark_stream import spark_stream as spark_stream
    from meander.epochs.decision import EpochDone
    from meander.epochs.modification import Modified
    from meander.on_spark.session import spark


__version__ = _VERSION

__all__ = [
    "Agg",
    "Aggregator",
    "Autoscale",
    "sliding",
    "tumbling",
    "BadInput",
    "Become",
    "Busy",
    "ConfigError",
    "ConnectedStreams",
    "Corrupted",
    "Divergent",
    "Effects",
    "EpochDone",
    "Fenced",
    "Flow",
    "Insert",
    "Remove",
    "Replace",
    "FlowError",
    "KeyedStream",
    "MeanderError",
    "Migrated",
    "Modified",
    "Processor",
    "Progress",
    "Rejected",
    "Replicas",
    "Rescaled",
    "Retryable",
    "Run",
    "SparkGone",
    "Stream",
    "WindowedStream",
    "aggregate",
    "autoscale",
    "console",
    "count_window",
    "cumulating",
    "discard",
    "files",
    "filter",
    "foreach_batch",
    "generator",
    "list_of",
    "map_batches",
    "map_of",
    "memory",
    "parquet",
    "process",
    "read_dead_letters",
    "read_state",
    "select",
    "session",
    "side",
    "spark",
    "spark_stream",
    "value",
    "watermark",
    "with_columns",
]
__all__ += _aggregates.__all__


_LAZY = {
    "EpochDone": "meander.epochs.decision",
    "Modified": "meander.epochs.modification",
    "spark": "meander.on_spark.session",
    "spark_stream": "meander.connect.spark_stream",
}
"""Names whose modules import much, for which tasks and readers of state should not wait; that of ``spark`` imports PySpark."""


if not TYPE_CHECKING:  # which would take every name for one that is there

    def __getattr__(name: str) -> Any:
        if name in _LAZY:
            return getattr(import_module(_LAZY[name]), name)
        raise _names.unknown_name("module 'meander'", name, _names.MODULE, __all__)


def __dir__() -> list[str]:
    """The public names, for completion."""
    return [*__all__, "__version__"]
