"""How each stored format is written and read today, with the same content as the golden files in ``tests/golden/formats``.

    python -m tests.state.golden    # writes the files that are missing; a file that is there stays for ever

A golden file is never written anew: of a later version of a format there is another file beside it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet
from tests.entries import epoch_entry
from tests.memory_store import MemoryStore

import meander as md
from meander.clock import FakeClock
from meander.connect.partitioned import PartitionedParquetSink, read_partitioned
from meander.connect.source import Split
from meander.coordinate.marks import Marks
from meander.epochs.compaction import merge_entry
from meander.epochs.decision import Decision
from meander.processes import ProcessId
from meander.replicate import requests
from meander.replicate.membership import Cohort, decision_name
from meander.state import formats
from meander.state.formats import Format
from meander.state.hashing import hash_keys
from meander.state.history import read_record, record_name
from meander.state.log import Log, entry_name, read_manifest, read_snapshot, snapshot_name
from meander.state.lookups import LookupTable, encode_pieces
from meander.state.manifest import Manifest
from meander.state.seen import flush_seen, load_seen
from meander.state.segment import DELETED, HASH, Segment, SegmentRef, encode_blocks, encode_segment
from meander.state.signs import Said, Sign
from meander.state.stores import lease, opening
from meander.state.stores.contract import DirStore
from meander.stored.documents import read_document, write_document
from meander.task.evaluate import DeadLetter
from meander.task.stage import dead_letter_frame, encode_dead_letters

FOLDER = Path(__file__).parents[1] / "golden" / "formats"
PROCESS = ProcessId(4711, "2f1d/pid:[4026531836]", "81234", "worker-1")
PLAN = {"flow": "orders", "version": 2, "digest": "9c5e", "packed": "plan/77aa.packed", "modification": "m1", "since": 2}
EVERY_GROUP = (1 << 128) - 1


class Recording(MemoryStore):
    """A store that remembers what was put, also where it was removed again."""

    def __init__(self) -> None:
        super().__init__()
        self.written: dict[str, bytes] = {}

    def put(self, name: str, data: Any) -> None:
        super().put(name, data)
        self.written[name] = self.objects[name]

    def put_if_absent(self, name: str, data: bytes) -> bool:
        self.written.setdefault(name, data)
        return super().put_if_absent(name, data)


@dataclass(frozen=True)
class Golden:
    """A golden file: its format, how today's writer makes its bytes, and how today's reader reads them.

    Where a library's version is in the bytes, ``shape`` says what of them must be the same.
    """

    format: Format
    write: Callable[[], bytes]
    read: Callable[[bytes], Any]
    shape: Callable[[bytes], Any] | None = None


# -- the log ----------------------------------------------------------------------------------------------------------


def _log(*appended: dict[str, Any], shared: bool = False) -> tuple[Recording, Log]:
    store = Recording()
    log = Log.take_over(store, FakeClock(start=1000.0), 128, shared)
    for entry in appended:
        log.append(entry)
    return store, log


def _epoch(number: int = 1, **more: Any) -> dict[str, Any]:
    ref = SegmentRef(f"segments/totals/00000001-{number:010d}-0000-a.arrow", 3, 1234, number, EVERY_GROUP)
    ending = SegmentRef(f"segments/hours/00000001-{number:010d}-0000-a.arrow", 9, 4321, number, 0xFF, (5, 6, 7, 8, 9))
    return epoch_entry(
        number,
        now=1001.5,
        plan=PLAN,
        splits=[["orders", {"file": "a.json", "size": 10}]],
        offsets={"orders": {"partial": None}},
        seen={"orders": [f"{number}.json"]},
        routing={"totals": [0, 1] * 64},
        asked=2,
        tables={
            "totals": {"keys": ["customer"], "segments": [ref.to_json()]},
            "hours": {"keys": ["customer", "__end"], "segments": [ending.to_json()], "time": "__end"},
        },
        floors={"hours": 4},
        times={"orders_time": {"heard": {"orders/a.json": [12, 1001.5]}, "since": 1001.5, "late": -(1 << 63), "mark": 7}},
        flushed={"hours": 3},
        staged={"out": [{"name": f"staged/out/00000001-{number:010d}-0000-a", "slot": 0, "rows": 2}]},
        counts={"epochs": 1, "rows_in": 4, "rows_out": 2},
        **more,
    )


def _merge(**more: Any) -> dict[str, Any]:
    output = SegmentRef("segments/totals/00000001-0000000002-merge-b.arrow", 5, 999, 2, EVERY_GROUP)
    inputs = [f"segments/totals/00000001-{number:010d}-0000-a.arrow" for number in (1, 2)]
    return {"table": "totals", "inputs": inputs, "output": output.to_json(), **more}


BEFORE: dict[str, tuple[dict[str, Any], ...]] = {
    "takeover": (),
    "takeover-shared": (),
    "epoch": (_epoch(),),
    "epoch-replica": (_epoch(by="a", digests={"totals": "1f", "out": "2e"}),),
    "compaction": (_epoch(1), _epoch(2), merge_entry([_merge()])),
    "compactions": (
        *(_epoch(1), _epoch(2)),
        merge_entry([_merge(), {**_merge(), "table": "hours", "inputs": [], "output": ["segments/hours/none", 0, 0, 1, "0"], "ends": {}}]),
    ),
    "names": (_epoch(), {"kind": "names", "seen": {"orders": ["seen/orders/00000001-000000000001-1-c"]}}),
    "pass": ({"kind": "pass"},),
    "trial": ({"kind": "trial", "by": "a", "seconds": 60.0},),
    "routing": (_epoch(), {"kind": "routing", "routing": {"totals": [0] * 128}}),
}
"""The entries of a log of which the last is the golden one."""


def _entry_place(kind: str) -> str:
    count = len(BEFORE[kind])
    return entry_name(1, count) if count else entry_name(0, 0)


def _write_entry(kind: str) -> bytes:
    store, _ = _log(*BEFORE[kind], shared=kind in ("takeover-shared", "epoch-replica", "trial"))
    return store.written[_entry_place(kind)]


def _read_entry(kind: str, data: bytes) -> Manifest:
    store, _ = _log(*BEFORE[kind][:-1], shared=kind in ("takeover-shared", "epoch-replica", "trial"))
    store.objects[_entry_place(kind)] = data
    return read_manifest(store)


def _snapshotted() -> tuple[Recording, Log]:
    store, log = _log(_epoch(), {"kind": "trial", "by": "a", "seconds": 60.0}, shared=True)
    log.snapshot({"orders": ["seen/orders/00000001-000000000001-1-c"]})
    return store, log


def _read_snapshot(data: bytes) -> Manifest | None:
    store = MemoryStore()
    store.objects[snapshot_name(1, 3)] = data
    return read_snapshot(store, 1, 3)


# -- Arrow and Parquet ------------------------------------------------------------------------------------------------


def _rows() -> pl.DataFrame:
    rows = pl.DataFrame({"customer": ["ada", "bob", None], "totals.n": [3, 1, 2], "totals.sum": [1.5, None, -0.0]})
    hashes = hash_keys(rows.select("customer"))
    order = np.argsort(hashes)
    return rows[order].insert_column(0, pl.Series(HASH, hashes[order]))


def _chapters() -> bytes:
    """Two chapters, and a deletion."""
    rows = _rows().with_columns(pl.Series("__end", [10, 20, 30]), pl.Series(DELETED, [False, True, False]))
    firsts = [int(rows[HASH][0]), int(rows[HASH][2])]
    return encode_blocks([rows[:2], rows[2:]], firsts, [[1, 2, 10, 20], [1, 1, 30, 30]]).to_pybytes()


def _read_segment(data: bytes) -> Any:
    segment = Segment("segments/totals/x", pa.py_buffer(data))
    chapters = [(list(c.numbers), c.first, c.last, c.rows) for c in segment.chapters]
    return segment.rows, segment.firsts.tolist(), chapters, segment.frame().to_dict(as_series=False)


def arrow_shape(data: bytes) -> Any:
    """What of an Arrow file is the format: columns, types, metadata, and where its batches begin."""
    reader = pa.ipc.open_file(pa.py_buffer(data))
    rows = [reader.get_batch(number).num_rows for number in range(reader.num_record_batches)]
    return [(field.name, str(field.type)) for field in reader.schema], reader.schema.metadata, rows


def _read_piece(data: bytes) -> Any:
    table = LookupTable("tables/x", [pa.py_buffer(data)], {"code": pl.String(), "name": pl.String()})
    return table.find(pl.DataFrame({"code": ["de", "xx"]})).to_dict(as_series=False)


def _write_piece() -> bytes:
    table = pl.DataFrame({"code": ["fr", "de", None, "de"], "name": ["France", "Germany", "nowhere", "Deutschland"]})
    (piece,) = encode_pieces(table, ["code"], nulls_equal=False)
    return piece.to_pybytes()


def _write_letters() -> bytes:
    return encode_dead_letters(dead_letter_frame(7, [DeadLetter("orders", "a.json:3", "not JSON", '{"a": [')]))


def _read_letters(data: bytes) -> Any:
    with TemporaryDirectory() as folder:
        Log.take_over(DirStore(folder), FakeClock())
        (Path(folder) / "dead_letters").mkdir()
        (Path(folder) / "dead_letters" / "part-0000000007-0000.parquet").write_bytes(data)
        return md.read_dead_letters(folder).to_pylist()


def parquet_shape(data: bytes) -> Any:
    file = pa.parquet.ParquetFile(pa.py_buffer(data))
    columns = [(field.name, str(field.type)) for field in file.schema_arrow]
    return columns, (file.metadata.metadata or {}).get(b"meander")


def _write_partitioned() -> bytes:
    return PartitionedParquetSink("out", ("day",)).encode(pl.DataFrame({"day": ["mon", None, "mon"], "n": [1, 2, 3]}))


def _partitioned_shape(data: bytes) -> Any:
    """The folders; how long their files are depends on the library."""
    size = int.from_bytes(data[-8:], "big")
    index = formats.PARTITIONED.read(data[-8 - size : -8], "x")
    return sorted(index), [folder for folder, _ in index["pieces"]]


# -- what replicas say ------------------------------------------------------------------------------------------------


def _cohort(store: MemoryStore) -> Cohort:
    return Cohort(store, FakeClock(start=1000.0), "a", 1)


def _write_decision() -> bytes:
    store = Recording()
    splits = (("orders", Split({"file": "a.json", "size": 10}, 3, 10, (999.0, 999.5))),)
    offsets: dict[str, Any] = {"orders": {"partial": None}}
    _cohort(store).agree(Decision(2, 1001.5, splits, offsets, {"orders": ["a.json"]}, flush=True, marks=Marks({"hours": 7})))
    return store.written[decision_name(1, 2)]


def _read_decision(data: bytes) -> Any:
    store = MemoryStore()
    store.objects[decision_name(1, 2)] = data
    return _cohort(store).agreed(2)


def _write_digests() -> bytes:
    store = Recording()
    with contextlib.suppress(md.Divergent):
        _cohort(store).object_to({"epoch": 2, "by": "b", "digests": {"totals": "1f"}}, {"totals": "2f"})
    return store.written["diverged/00000001/000000000002/a"]


def _read_digests(data: bytes) -> Any:
    store = MemoryStore()
    store.objects.update({f"diverged/00000001/000000000002/{name}": data for name in "bc"})
    try:
        _cohort(store).check_objections({2: {"totals": "1f"}})
    except md.Divergent as error:
        return "operator 'totals' gave out other rows" in str(error)
    return False


def _write_sign() -> bytes:
    return Said(17, 2, PROCESS, "http://127.0.0.1:8080", 1001.5, True, "candidate-0000000003", 5).to_bytes()


def _read_sign(data: bytes) -> Said | None:
    sign = Sign("a", 1, data, Said.from_bytes(data))
    sign.check()
    return sign.said


def _write_supervisor() -> bytes:
    store = Recording()
    requests.say(store, 3, 17, PROCESS, 1001.5, [{"name": "a", "state": "running", "epoch": 2}])
    return store.written[requests.SUPERVISOR]


class _Speaks(FakeClock):
    """A clock during whose sleep a supervisor speaks."""

    def __init__(self, store: MemoryStore, data: bytes) -> None:
        super().__init__()
        self._says = (store, data)

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        store, data = self._says
        store.put(requests.SUPERVISOR, data)


def _read_supervisor(data: bytes) -> Any:
    store = MemoryStore()
    store.put(requests.SUPERVISOR, b"{}")
    return requests.live_supervisor(store, _Speaks(store, data))


def _write_wish() -> bytes:
    store = Recording()
    requests.wish(store, "w1", "add", count=2)
    return store.written["replicas/asked/w1"]


def _read_wish(data: bytes) -> Any:
    store = MemoryStore()
    store.put("replicas/asked/w1", data)
    wish = requests.asked(store)["w1"]
    requests.check_wish(wish)
    return wish


def _write_answer() -> bytes:
    store = Recording()
    requests.answer(store, "w1", {"names": ["b"], "replicas": []})
    return store.written["replicas/answered/w1"]


def _read_answer(data: bytes) -> Any:
    store = MemoryStore()
    store.put("replicas/answered/w1", data)
    return requests.answered(store, "w1")


def _write_lease() -> bytes:
    store = Recording()
    with mock.patch.object(os, "getpid", return_value=4711), mock.patch.object(socket, "gethostname", return_value="worker-1"):
        lease.Lease(store, 1, FakeClock(start=1000.0))
    return store.written["lease/00000001"]


def _read_lease(data: bytes) -> Any:
    store = MemoryStore()
    store.put("lease/00000001", data)

    class Renewed(FakeClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            store.put("lease/00000001", data.replace(b'"number":1', b'"number":2'))

    return lease.live_owner(store, 1, Renewed())


# -- the others -------------------------------------------------------------------------------------------------------


def _write_store() -> bytes:
    store = Recording()
    with mock.patch.object(opening, "VERSION", "0.1.0"):
        opening.put_format(store, FakeClock())
    return store.written[opening.NAME]


def _read_store(data: bytes) -> bool:
    store = MemoryStore()
    store.put(opening.NAME, data)
    return opening.check_format(store)


def _names() -> tuple[Recording, Manifest, dict[str, list[str]]]:
    store, manifest = Recording(), Manifest(generation=1, position=9, recent={"orders": ["a.json", "dir/b.json"]})
    return store, manifest, flush_seen(store, FakeClock(start=1000.0), manifest)


def _write_names() -> bytes:
    store, _, seen = _names()
    return store.written[seen["orders"][0]]


def _read_names(data: bytes) -> set[str]:
    store, _, seen = _names()
    store.objects[seen["orders"][0]] = data
    return load_seen(store, Manifest(generation=1, position=10, seen=seen), "orders")


def _record(format: Format, **facts: Any) -> Golden:
    name = record_name(format, "m1")

    def read(data: bytes) -> Any:
        store = MemoryStore()
        store.put(name, data)
        return read_record(store, format, "m1")

    return Golden(format, lambda: format.write(facts), read)


GOLDEN: dict[str, Golden] = {
    "store.json": Golden(formats.STORE, _write_store, _read_store),
    **{
        f"entry-{kind}.json": Golden(
            formats.ENTRY,
            lambda kind=kind: _write_entry(kind),
            lambda data, kind=kind: _read_entry(kind, data),  # type: ignore[misc]
        )
        for kind in BEFORE
    },
    "snapshot.json": Golden(formats.SNAPSHOT, lambda: _snapshotted()[0].written[snapshot_name(1, 3)], _read_snapshot),
    "segment.arrow": Golden(formats.SEGMENT, lambda: encode_segment(_rows(), 2).to_pybytes(), _read_segment, arrow_shape),
    "segment-chapters.arrow": Golden(formats.SEGMENT, _chapters, _read_segment, arrow_shape),
    "piece.arrow": Golden(formats.PIECE, _write_piece, _read_piece, arrow_shape),
    "names.json": Golden(formats.NAMES, _write_names, _read_names),
    "decision.json": Golden(formats.DECISION, _write_decision, _read_decision),
    "digests.json": Golden(formats.DIGESTS, _write_digests, _read_digests),
    "sign.json": Golden(formats.SIGN, _write_sign, _read_sign),
    "supervisor.json": Golden(formats.SUPERVISOR, _write_supervisor, _read_supervisor),
    "wish.json": Golden(formats.WISH, _write_wish, _read_wish),
    "answer.json": Golden(formats.ANSWER, _write_answer, _read_answer),
    "lease.json": Golden(formats.LEASE, _write_lease, _read_lease),
    "request.json": _record(
        formats.REQUEST,
        id="m1",
        author="ada",
        at=1001.5,
        epoch=2,
        effects={"version": 2, "changes": ["replace 'clean'"], "state": {"totals": "kept"}},
        **{
            "from": "9c5e",
            "to": "77aa",
            "packed": "plan/77aa.packed",
            "code": {"clean": {"kind": "filter", "source": "n > 1", "hash": "3f"}},
        },
    ),
    "verdict.json": _record(formats.VERDICT, verdict="in force", version=2, epoch=2, seconds=0.125, decided=1002.0),
    "verdict-rejected.json": _record(formats.VERDICT, verdict="rejected", epoch=2, why="ValueError: no", decided=1002.0),
    "reversal.json": _record(formats.REVERSAL, verdict="taken back", epoch=3, why="ValueError: no", decided=1003.0),
    "plan.json": Golden(
        formats.PLAN,
        lambda: write_document({"flow": "orders", "version": 1, "operators": [], "retired": {}}),
        lambda data: {name: value for name, value in read_document(data, "plan 'p'").items() if name != "written_by"},
        lambda data: list(json.loads(data)),
    ),
    "record.json": Golden(formats.RECORD, lambda: formats.RECORD.write({"flow": "orders"}), lambda data: formats.RECORD.read(data, "x")),
    "dead_letters.parquet": Golden(formats.DEAD_LETTERS, _write_letters, _read_letters, parquet_shape),
    "staged-partitioned.bin": Golden(
        formats.PARTITIONED,
        _write_partitioned,
        lambda data: read_partitioned(data).to_dict(as_series=False),
        _partitioned_shape,
    ),
}


def main() -> None:
    for name, golden in GOLDEN.items():
        if not (FOLDER / name).exists():
            (FOLDER / name).write_bytes(golden.write())
            print(name)


if __name__ == "__main__":
    main()
