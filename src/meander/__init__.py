"""Meander: streams that change course without stopping. Stateful stream processing on Apache Spark, in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meander.aggregates import (
    Aggregator,
    collect,
    count,
    count_distinct,
    first,
    last,
    max,
    mean,
    min,
    quantile,
    std,
    sum,
    top_k,
    var,
)
from meander.connect.console import console
from meander.connect.discard import discard
from meander.connect.files import files
from meander.connect.foreach_batch import foreach_batch
from meander.connect.generator import generator
from meander.connect.memory import memory
from meander.connect.partitioned import parquet
from meander.errors import BadInput, Busy, ConfigError, Corrupted, Divergent, Fenced, FlowError, MeanderError, Rejected, Retryable
from meander.flow import Flow, KeyedStream, Stream
from meander.outcomes import Progress
from meander.plan.become import Become
from meander.plan.modify import Insert, Remove, Replace
from meander.plan.unplaced import aggregate, filter, map_batches, process, select, side, watermark, with_columns
from meander.plan.windows import session, sliding, tumbling
from meander.processor import Processor, list_of, map_of, value
from meander.replicate.handle import Replicas
from meander.run import Run
from meander.settings import autoscale
from meander.state.reading import read_dead_letters, read_state

if TYPE_CHECKING:
    from meander.connect.spark_stream import spark_stream as spark_stream
    from meander.engine.session import spark as spark

__version__ = "0.1.0"

__all__ = [
    "Aggregator",
    "sliding",
    "tumbling",
    "BadInput",
    "Become",
    "Busy",
    "ConfigError",
    "Corrupted",
    "Divergent",
    "Fenced",
    "Flow",
    "Insert",
    "Remove",
    "Replace",
    "FlowError",
    "KeyedStream",
    "MeanderError",
    "Processor",
    "Progress",
    "Rejected",
    "Replicas",
    "Retryable",
    "Run",
    "Stream",
    "aggregate",
    "autoscale",
    "collect",
    "console",
    "count",
    "count_distinct",
    "discard",
    "files",
    "filter",
    "first",
    "foreach_batch",
    "generator",
    "last",
    "list_of",
    "map_batches",
    "map_of",
    "max",
    "mean",
    "memory",
    "min",
    "parquet",
    "process",
    "quantile",
    "read_dead_letters",
    "read_state",
    "select",
    "session",
    "side",
    "spark",
    "spark_stream",
    "std",
    "sum",
    "top_k",
    "value",
    "var",
    "watermark",
    "with_columns",
]


def __getattr__(name: str) -> Any:
    """``spark`` and ``spark_stream`` import PySpark, which tasks and pure users of the state should not wait for."""
    if name == "spark":
        from meander.engine.session import spark

        return spark
    if name == "spark_stream":
        from meander.connect.spark_stream import spark_stream

        return spark_stream
    raise AttributeError(f"module 'meander' has no attribute '{name}'")
