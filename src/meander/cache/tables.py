"""Tables too large to travel with the plan, as workers read them: mapped from the store, or from the executor's cache.

``epochs.tables`` writes them and says which are alive; tasks get their *marks*, and never the
tables.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import polars as pl
import pyarrow as pa

from meander.cache.reader import ExecutorCache
from meander.errors import Corrupted, MeanderError
from meander.plan.graph import Plan
from meander.plan.tables import JoinStatic, StoredLookup
from meander.state.lookups import LookupTable, check_of
from meander.state.manifest import Json, pieces_of
from meander.state.stores.contract import Store
from meander.task.physical import Compiled

Marks = dict[str, Json]
_UNUSED = 64
"""A worker closes a table that was not used for so many tasks: it belongs to another flow of the
session."""


def lookups_of(plan: Plan) -> dict[str, StoredLookup]:
    """The operators of a plan that look rows up in stored tables."""
    return {n.name: n.op.lookup for n in plan.nodes if isinstance(n.op, JoinStatic) and isinstance(n.op.lookup, StoredLookup)}


class OpenTables:
    """The stored tables that a worker has open: mapped, each checked once, and closed when no
    operator uses it."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], tuple[LookupTable, int]] = {}
        self._tasks = 0
        self._openers: dict[str, Callable[[], LookupTable]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def lend(self, compiled: Compiled, marks: Mapping[str, Json], store: Store, executor_cache: ExecutorCache | None) -> None:
        """Have a plan's lookups find their rows where a task's marks say."""
        self._tasks += 1
        mine = {(store.url, mark["object"]) for mark in marks.values()}
        for key, (_, last) in list(self._open.items()):
            if key not in mine and (key[0] == store.url or last < self._tasks - _UNUSED):
                del self._open[key]
        self._openers = {}
        for name, lookup in lookups_of(compiled.plan).items() if marks else ():
            self._openers[name] = opener = partial(self._opened, name, marks[name], lookup, store, executor_cache)
            lookup.find = partial(_find, opener)

    def open(self, operators: Iterable[str]) -> None:
        """Open what these operators need. Before they see a row: that a table cannot be read is no fault of one."""
        for name in operators:
            if name in self._openers:
                self._openers[name]()

    def _opened(self, name: str, mark: Json, lookup: StoredLookup, store: Store, executor_cache: ExecutorCache | None) -> LookupTable:
        key = (store.url, mark["object"])
        found = self._open.get(key)
        table = LookupTable(mark["object"], _pieces(name, mark, store, executor_cache), _schema(lookup)) if found is None else found[0]
        self._open[key] = (table, self._tasks)
        return table


def _find(opener: Callable[[], LookupTable], keys: pl.DataFrame) -> pl.DataFrame:
    return opener().find(keys)


def bring(marks: Mapping[str, Json], store: Store, executor_cache: ExecutorCache | None) -> None:
    """Fetch tables into an executor's cache before an epoch needs them. Errors are ignored here:
    they show when an epoch reads the table."""
    if executor_cache is not None:
        with contextlib.suppress(MeanderError, OSError):
            for name, mark in marks.items():
                _pieces(name, mark, store, executor_cache)


def _schema(lookup: StoredLookup) -> dict[str, pl.DataType]:
    return {column: lookup.schema[column] for column in lookup.kept}


def _pieces(operator: str, mark: Json, store: Store, executor_cache: ExecutorCache | None) -> list[pa.Buffer]:
    """A table's bytes, mapped where they can be: from the store where that is a folder, or else from this executor's cache."""
    find = partial(_mapped, operator, store) if executor_cache is None else partial(_cached, operator, executor_cache, store)
    return [find(name, check) for name, check in zip(pieces_of(mark), mark["pieces"], strict=True)]


def _mapped(operator: str, store: Store, name: str, check: str) -> pa.Buffer:
    data = store.map(name)
    if data is None:
        raise Corrupted(
            f"join_static '{operator}': its table is missing: '{name}' is named by the log but is not in store {store.url}; was the store "
            "changed from outside? Start the flow again from the file that has the table: it is stored anew"
        )
    if check_of(data) != check:
        raise Corrupted(
            f"join_static '{operator}': its table is damaged: '{name}' in store {store.url} is not what was written there; remove it, and "
            "start the flow again from the file that has the table: it is stored anew"
        )
    return data


def _cached(operator: str, executor_cache: ExecutorCache, store: Store, name: str, check: str) -> pa.Buffer:
    """A piece of a table, through the cache. One worker of the executor fetches it; a damaged copy
    is not kept."""
    with _alone(executor_cache):
        data = executor_cache.cache.whole(name)
        if data is None or check_of(data) != check:
            executor_cache.cache.add(name, _mapped(operator, store, name, check))
            data = executor_cache.cache.whole(name)
    return _mapped(operator, store, name, check) if data is None else data  # it had to make room already


@contextlib.contextmanager
def _alone(executor_cache: ExecutorCache) -> Iterator[None]:
    lock = os.open(executor_cache.folder / "tables.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
