"""The peers of the benchmark of Python state: Spark's own ``transformWithState``, row by row and in pandas.

Both need the RocksDB state store, and get the settings that make it fastest (``harness.peers``). The state of a key is one value with four
fields, read once and written once per key and batch: that is one round trip to the JVM less per variable than a value for each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meander.bench.harness.peers import peer_settings
from meander.bench.harness.statistics import Json
from meander.bench.python_state import ours as python_state_ours
from meander.bench.python_state.ours import step
from meander.bench.python_state.request import PythonStateRequest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PEERS = ("spark-rows", "spark-pandas")
_STATE = "count long, total double, last double, phase long"
_OUTPUT = "key long, phase long, count long, total double, last double"


def settings_of(parallelism: int, memory: str) -> dict[str, str]:
    return peer_settings("spark-rocksdb", parallelism, memory)


def run(request: PythonStateRequest, progress: Callable[[int], None]) -> Json:
    """The first batches of the input; the answer has how long each took."""
    from pyspark import cloudpickle  # only measuring processes pay for this
    from pyspark.sql import SparkSession

    cloudpickle.register_pickle_by_value(python_state_ours)  # type: ignore[no-untyped-call]  # its workers need not know this package
    settings: dict[str, Any] = {**settings_of(request.parallelism, request.memory), **request.settings}
    session = SparkSession.builder.master(request.master).appName(request.system).config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    events = session.readStream.schema("key long, value double").option("maxFilesPerTrigger", request.files_per_epoch)
    machines = _machines(request.system, events.parquet(request.input))
    folder = Path(request.folder)
    writer = machines.writeStream.outputMode("append").format("parquet").option("path", str(folder / "out"))
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    while not query.awaitTermination(1):
        last = query.lastProgress
        if last is not None:
            progress(last.batchId + 1)
    batches = [json.loads(found.json) for found in query.recentProgress]
    session.stop()
    return {
        "epochs": [
            {"seconds": batch["durationMs"]["triggerExecution"] / 1000, "rows_in": batch["numInputRows"]}
            for batch in batches
            if batch["numInputRows"]
        ]
    }


def _machines(system: str, events: DataFrame) -> DataFrame:
    import pandas as pd  # type: ignore[import-untyped]
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

    class Machine(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.state = handle.getValueState("machine", _STATE)

        def _go(self, key: int, values: Any) -> list[tuple[Any, ...]]:
            stored = self.state.get()
            count, total, last, phase = (0, 0.0, None, 0) if stored is None else stored
            found = []
            for value in values:
                count += 1
                total += value
                last = value
                after = step(phase, value)
                if after != phase:
                    phase = after
                    found.append((key, phase, count, total, value))
            self.state.update((count, total, last, phase))
            return found

        def close(self) -> None: ...

    class Rows(Machine):
        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
            for found in self._go(key[0], (row.value for row in rows)):
                yield Row(key=found[0], phase=found[1], count=found[2], total=found[3], last=found[4])

    class Pandas(Machine):
        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
            values = [value for frame in rows for value in frame["value"].tolist()]
            found = self._go(key[0], values)
            if found:
                yield pd.DataFrame(found, columns=["key", "phase", "count", "total", "last"])

    keyed = events.groupBy("key")
    if system == "spark-rows":
        return keyed.transformWithState(Rows(), _OUTPUT, "append", "none")
    return keyed.transformWithStateInPandas(Pandas(), _OUTPUT, "append", "none")
