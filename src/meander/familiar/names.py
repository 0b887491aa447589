"""Names that other libraries have and Meander has not: for each, what to write instead.

``Suggests`` is a base of the public classes; ``unknown_name`` makes the AttributeError. A test checks that what is suggested exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from meander.plan.schemas import did_you_mean

_KEY = "write .key_by('customer').aggregate(md.count())"
_AGGREGATE = "write .aggregate(md.count().alias('n'), md.sum('amount'))"
_SEEN = "a stream has no end that could be looked at; write .sink('out', md.console()), or read the state with md.read_state(...)"
_SORTED = "a stream has no end, so it has no order; the best rows of every key are .key_by('k').top(10, by='amount')"
_LIMIT = "a stream has no end to be cut; the best rows of every key are .key_by('k').top(10, by='amount')"
_SINK = "write .sink('out', md.parquet('out/')), then flow.start('state/')"
_DEDUPLICATE = "write .deduplicate('id', ttl='1h')"
_FUNCTION = "write .map_batches(function), with a function from Polars DataFrame to Polars DataFrame"
_PROCESS = "write .key_by('customer').process(MyProcessor), with a subclass of md.Processor"
_UNION = "write .union(other)"
_RENAME = "write .rename({'old': 'new'})"
_NULLS = "write .filter('amount is not null'), or .with_columns(pl.col('amount').fill_null(0))"
_AS_IS = "leave it out: state is kept by Meander, and flow.start(..., parallelism=4) says how many slots have it"
_COLUMNS = "write .schema, which maps the names of the columns to their types"
_START = "write flow.start('state/'); a sink returns the flow"
_WINDOWED = "write .window(md.tumbling('10s')).aggregate(md.count())"
_BATCHES = "write .sink('out', md.foreach_batch(function))"
_KEYED_FIRST = (
    "key_by is followed by aggregate, window, process, connect, latest, top or deduplicate; write what concerns single rows before it"
)
_WINDOW_FIRST = "a window is followed by aggregate, top or join; write what concerns single rows before it, or after the aggregate"
_CONNECT = "write .key_by('id').connect(other.key_by('id')).process(MyProcessor), with a processor that has on_other_events, too"
_CONNECTED_LAST = "connected streams are followed by process; write what concerns the rows of one stream before key_by"
_BY_FOLD = {
    "count": "write .aggregate(md.count())",
    "len": "write .aggregate(md.count())",
    "sum": "write .aggregate(md.sum('amount'))",
    "avg": "write .aggregate(md.avg('amount'))",
    "mean": "write .aggregate(md.mean('amount'))",
    "min": "write .aggregate(md.min('amount'))",
    "max": "write .aggregate(md.max('amount'))",
    "n_unique": "write .aggregate(md.count_distinct('customer'))",
    "agg": _AGGREGATE,
    "pivot": "write one aggregate per column, as in .aggregate(md.count(where=\"kind = 'a'\").alias('a'))",
}
_PROCESSED = dict.fromkeys(
    (
        "transformWithState", "transformWithStateInPandas", "applyInPandasWithState", "flatMapGroupsWithState", "mapGroupsWithState",
        "applyInPandas", "map_groups", "apply",
    ),
    _PROCESS,
)  # fmt: skip
_TOGETHER = dict.fromkeys(("cogroup", "coGroup"), _CONNECT)

STREAM: Mapping[str, str] = {
    **_BY_FOLD,
    **dict.fromkeys(("groupBy", "groupby", "group_by", "groupByKey", "keyBy"), _KEY),
    **dict.fromkeys(("withColumn", "withColumns", "with_column", "assign"), "write .with_columns(cents='amount * 100')"),
    **dict.fromkeys(("withColumnRenamed", "withColumnsRenamed", "toDF"), _RENAME),
    "selectExpr": "write .select('customer', 'amount * 100 as cents'): SQL text is an expression",
    "withWatermark": "write .watermark('ts', grace='10m')",
    **dict.fromkeys(("dropDuplicates", "drop_duplicates", "dropDuplicatesWithinWatermark", "distinct", "unique", "dedup"), _DEDUPLICATE),
    **dict.fromkeys(("unionByName", "unionAll", "concat", "vstack", "extend"), _UNION),
    **dict.fromkeys(("writeStream", "write", "writeTo", "sink_parquet", "write_parquet", "to_parquet", "saveAsTable", "output"), _SINK),
    **dict.fromkeys(("foreachBatch", "foreach", "sink_batches", "writeStreamForeachBatch"), _BATCHES),
    **dict.fromkeys(("orderBy", "sort", "sort_by", "sort_values", "sortWithinPartitions"), _SORTED),
    **dict.fromkeys(("limit", "head", "tail", "slice", "take", "first", "last", "offset"), _LIMIT),
    **dict.fromkeys(("show", "display", "collect", "toPandas", "to_pandas", "toArrow", "fetch", "print", "glimpse", "describe"), _SEEN),
    **dict.fromkeys(
        ("mapInPandas", "mapInArrow", "map", "flatMap", "flat_map", "map_rows", "map_elements", "transform", "pipe", "rdd"), _FUNCTION
    ),
    **_PROCESSED,
    **_TOGETHER,
    **dict.fromkeys(("cache", "persist", "repartition", "coalesce", "checkpoint", "localCheckpoint", "unpersist", "lazy"), _AS_IS),
    **dict.fromkeys(("columns", "dtypes", "printSchema", "collect_schema", "width"), _COLUMNS),
    **dict.fromkeys(("dropna", "fillna", "na", "fill_null", "drop_nulls"), _NULLS),
    **dict.fromkeys(("cast", "astype"), "write .with_columns(pl.col('amount').cast(pl.Float64))"),
    **dict.fromkeys(("crossJoin", "merge"), "write .join(other, on='id', within='1h'), or .join_static(table, on='id')"),
    "join_asof": "write .join_latest(other, on='id', as_of=True)",
    "join_where": "write .join(other, on='id', within='1h', where='paid >= amount')",
    **dict.fromkeys(("start", "run", "execute", "awaitTermination", "await_termination"), _START),
    **dict.fromkeys(("group_by_dynamic", "windowed", "rolling", "resample", "over"), _WINDOWED),
    "explode_outer": "write .explode('tags', keep_empty=True)",
    "flatten": "write .explode('tags')",
    "alias": "name an operator with name=, as in .filter('amount > 0', name='positive')",
    "withName": "name an operator with name=, as in .filter('amount > 0', name='positive')",
    "sample": "write .filter(pl.col('id').hash() % 100 == 0): the same rows every time",
    "sql": "SQL text is an expression, as in .filter('amount > 0'); queries are for state: meander state state/ totals --sql",
    "isStreaming": "every stream is one",
}

KEYED: Mapping[str, str] = {
    **_BY_FOLD,
    **_PROCESSED,
    **_TOGETHER,
    **dict.fromkeys(
        ("filter", "where", "select", "with_columns", "withColumn", "map_batches", "drop", "rename", "explode", "watermark", "union"),
        _KEYED_FIRST,
    ),
    **dict.fromkeys(("sink", "writeStream", "write"), f"{_AGGREGATE} before it: a key alone makes no rows"),
    "reduce": "write .aggregate(...) with a subclass of md.Aggregator, or .process(MyProcessor)",
    **dict.fromkeys(("windowBy", "window_by", "group_by_dynamic", "timeWindow"), "write .window(md.tumbling('10s'))"),
    "join": "write orders.join(payments, on='id'): a join has its keys itself",
    **dict.fromkeys(("head", "limit", "first", "tail"), "write .top(10, by='amount'), .latest(order='ts') or .deduplicate()"),
    "last": "write .latest(order='ts')",
    **dict.fromkeys(("unique", "dropDuplicates", "drop_duplicates", "distinct"), "write .deduplicate(ttl='1h')"),
}

WINDOWED: Mapping[str, str] = {
    **_BY_FOLD,
    **dict.fromkeys(("filter", "where", "select", "with_columns", "map_batches", "sink", "process", "union", "key_by"), _WINDOW_FIRST),
    **dict.fromkeys(("groupBy", "group_by", "groupby"), "write .key_by('customer') before .window(...)"),
    **dict.fromkeys(("allowedLateness", "grace"), "write .aggregate(md.count(), lateness='1h')"),
}

CONNECTED: Mapping[str, str] = {
    **_PROCESSED,
    **dict.fromkeys(("keyBy", "key_by"), "write .key_by('id') of both streams, and then .connect(...)"),
    **dict.fromkeys(("map", "flatMap", "flat_map", "transform"), "write .process(MyProcessor), with on_events and on_other_events"),
    **dict.fromkeys(("filter", "where", "select", "with_columns", "map_batches", "aggregate", "window", "sink", "union"), _CONNECTED_LAST),
    "join": "write orders.join(payments, on='id', within='1h'): a join has its keys itself",
}

FLOW: Mapping[str, str] = {
    **dict.fromkeys(("readStream", "read", "read_stream", "load", "table", "input", "add_source", "from_source"),
        "write flow.source('orders', md.files('in/', format='json', schema={'customer': 'string'}))"),
    **dict.fromkeys(("run", "execute", "collect", "awaitTermination", "submit"), "write flow.start('state/')"),
    **dict.fromkeys(("sink", "filter", "where", "select", "key_by", "map_batches", "with_columns", "aggregate"),
        "operators belong to streams: keep what flow.source(...) or an operator returned, and go on from there; .sink(...) ends a stream"),
    **dict.fromkeys(("stop", "process_available", "status"), "write run = flow.start('state/'), which returns the run"),
}  # fmt: skip

RUN: Mapping[str, str] = {
    "awaitTermination": "write run.await_termination()",
    **dict.fromkeys(("join", "wait"), "write run.await_termination()"),
    "processAllAvailable": "write run.process_available()",
    **dict.fromkeys(("lastProgress", "recentProgress", "progress", "isActive", "is_active", "id", "runId", "exception"),
        "write run.status(), a dict with state, epoch, rows_in, error and more"),
    **dict.fromkeys(("close", "terminate", "cancel", "kill", "shutdown"), "write run.stop()"),
    **dict.fromkeys(("state", "read_state", "query"), "write md.read_state('state/', 'totals')"),
    "scale": "write run.rescale('totals', 4)",
}  # fmt: skip

MODULE: Mapping[str, str] = {
    **dict.fromkeys(("col", "lit", "when", "expr", "element", "DataFrame", "struct", "concat_str"),
        "expressions are SQL text or Polars': import polars as pl, and write pl.{name}(...)"),
    **dict.fromkeys(("F", "functions", "sql"), "expressions are SQL text, as in .filter('amount > 0'), or Polars': import polars as pl"),
    **dict.fromkeys(("window", "windows", "hop", "tumble", "hopping", "session_window"),
        "write md.tumbling('10s'), md.sliding('10s', '2s') or md.session('30s')"),
    **dict.fromkeys(("read_parquet", "scan_parquet", "read_json", "read_csv", "json", "csv", "read", "readStream", "file", "folder"),
        "write md.files('in/', format='json', schema={'customer': 'string'})"),
    **dict.fromkeys(("kafka", "read_kafka", "kinesis", "delta", "readstream"), "write md.spark_stream(df), with any streaming DataFrame"),
    **dict.fromkeys(("write_parquet", "sink_parquet", "to_parquet"), "write md.parquet('out/')"),
    **dict.fromkeys(("foreachBatch", "foreach"), "write md.foreach_batch(function)"),
    **dict.fromkeys(("SparkSession", "Session", "connect"), "write md.spark(master='local[4]')"),
    **dict.fromkeys(("approx_count_distinct", "n_unique"), "write md.count_distinct('customer', approximate=True)"),
    "countDistinct": "write md.count_distinct('customer')",
    **dict.fromkeys(("collect_list", "collect_set", "list", "array_agg"), "write md.collect('customer')"),
    **dict.fromkeys(("percentile_approx", "percentile", "median"), "write md.quantile('amount', 0.5)"),
    **dict.fromkeys(("stddev", "stddev_samp"), "write md.std('amount')"),
    **dict.fromkeys(("variance", "var_samp"), "write md.var('amount')"),
    **dict.fromkeys(("len", "size"), "write md.count()"),
    **dict.fromkeys(("max_by", "min_by"), "write .key_by('k').top(1, by='amount')"),
    **dict.fromkeys(("groupBy", "group_by", "groupby", "key_by"), "it is a method of streams: " + _KEY),
    **dict.fromkeys(("source", "sink", "join", "union"), "it is a method: flow.source(...), stream.{name}(...)"),
    "where": "write md.filter('amount > 0')",
    **dict.fromkeys(("with_column", "withColumn", "withColumns"), "write md.with_columns(cents='amount * 100')"),
    **dict.fromkeys(("agg", "groupAgg"), "write md.aggregate(md.count(), by='customer')"),
    **dict.fromkeys(("Dataflow", "Pipeline", "StreamingContext", "StreamExecutionEnvironment"), "write md.Flow('orders')"),
    **dict.fromkeys(("start", "run"), "write flow.start('state/')"),
    **dict.fromkeys(("ProcessFunction", "KeyedProcessFunction", "StatefulProcessor"), "write a subclass of md.Processor"),
    **dict.fromkeys(("CoProcessFunction", "KeyedCoProcessFunction", "CoMapFunction", "CoFlatMapFunction"),
        "write a subclass of md.Processor with on_other_events, for a.key_by('k').connect(b.key_by('k')).process(...)"),
    **dict.fromkeys(("ValueState", "state"), "write md.value('long'), in a subclass of md.Processor"),
    "ListState": "write md.list_of('long'), in a subclass of md.Processor",
    "MapState": "write md.map_of('string', 'long'), in a subclass of md.Processor",
    "udf": "write .map_batches(function)",
    "rate": "write md.generator('key_value', rate=1000)",
    **dict.fromkeys(("noop", "blackhole", "devnull"), "write md.discard()"),
}  # fmt: skip


def unknown_name(owner: str, name: str, instead: Mapping[str, str], known: Iterable[str], columns: Iterable[str] = ()) -> AttributeError:
    """The error for an unknown name. It gives the name to write instead if that is known, otherwise
    similar names.

    >>> print(unknown_name("'Run' object", "wait", RUN, ["stop"]))
    'Run' object has no attribute 'wait': write run.await_termination()
    >>> print(unknown_name("'Run' object", "sttop", {}, ["stop"]))
    'Run' object has no attribute 'sttop'; did you mean 'stop'?
    """
    text = f"{owner} has no attribute {name!r}"
    hint = instead.get(name)
    if hint is not None:
        text = f"{text}: {hint.replace('{name}', name)}"
    elif name in columns:
        text = (
            f"{text}: it is a column; in an expression write pl.col({name!r}), or its name in SQL text, as in .filter('{name} is not null')"
        )
    else:
        text += did_you_mean(name, [one for one in known if not one.startswith("_")])
    # With an object Python would add a guess of its own to the traceback.
    return AttributeError(text, name=name, obj=None)


class Suggests:
    """A class that says what to write where an attribute is not there. Not for type checkers, which know what there is."""

    _instead: Mapping[str, str] = {}

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            columns = () if name.startswith("_") else self._columns()
            raise unknown_name(f"{type(self).__name__!r} object", name, self._instead, dir(type(self)), columns)

    def _columns(self) -> Iterable[str]:
        """The columns that a user may take for attributes."""
        return ()


class NoTable(Suggests):
    """A stream, which a user may take for a table: ``stream['amount']``, ``for row in stream``."""

    if not TYPE_CHECKING:

        def __getitem__(self, key: object) -> Any:
            named = f"pl.col({key!r})" if isinstance(key, str) else "pl.col('amount')"
            raise TypeError(
                f"a {type(self).__name__} is no table: its columns and rows cannot be taken out. In an expression write {named}, or "
                "SQL text; .select(...) keeps some columns; rows are seen with .sink('out', md.console())"
            )
