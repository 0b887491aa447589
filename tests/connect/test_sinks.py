"""Sinks: staged rows come out whole, once per epoch, and never before they are published."""

from __future__ import annotations

import errno
import json
import os
import pickle
import threading
from pathlib import Path

import polars as pl
import pytest
from tests.local import Local, Script

import meander as md
from meander import durable
from meander.connect import partitioned
from meander.connect.console import console
from meander.connect.discard import discard
from meander.connect.foreach_batch import foreach_batch
from meander.connect.memory import memory
from meander.connect.partitioned import PartitionedParquetSink, parquet
from meander.connect.sink import Sink, Staged, StagedFile, for_tasks
from meander.errors import BadInput, ConfigError, Corrupted, FlowError

FRAME = pl.DataFrame({"k": ["a", None, "c"], "n": [1, 2, 3], "t": pl.Series([0, 1, 2]).cast(pl.Datetime("us"))})


def staged(sink: Sink, frame: pl.DataFrame, slot: int = 0, folder: Path | None = None) -> Staged:
    data = sink.encode(frame)
    local = None
    if folder is not None:
        folder.mkdir(exist_ok=True)
        local = folder / f"staged-{slot}-{len(data)}"
        local.write_bytes(data)
    return Staged(StagedFile("staged", slot, frame.height), lambda: data, local)


def test_memory_returns_what_was_published_in_epoch_and_slot_order() -> None:
    out = memory()
    out.open()
    assert out.frame().height == out.table().num_rows == 0
    out.publish(2, [staged(out, FRAME.tail(1))])
    out.publish(1, [staged(out, FRAME[1:2], slot=1), staged(out, FRAME.head(1), slot=0)])
    assert out.frame().equals(FRAME)
    assert out.table().to_pylist() == FRAME.to_dicts()


def test_memory_ignores_an_epoch_published_again() -> None:
    out = memory()
    for _ in range(2):
        out.publish(1, [staged(out, FRAME)])
    assert out.frame().height == 3
    out.clear()
    out.publish(1, [staged(out, FRAME)])
    assert out.frame().height == 0


def test_memory_travels_without_its_rows() -> None:
    out = memory()
    out.publish(1, [staged(out, pl.DataFrame({"n": range(100_000)}))])
    data = pickle.dumps(out)
    assert len(data) < 1000
    assert pickle.loads(data).encode(FRAME) == out.encode(FRAME)


def test_memory_can_be_read_while_epochs_are_published() -> None:
    out = memory()
    file = staged(out, FRAME)
    writer = threading.Thread(target=lambda: [out.publish(epoch, [file]) for epoch in range(200)])
    writer.start()
    while writer.is_alive():
        assert out.frame().height % 3 == 0
    writer.join()
    assert out.frame().height == 600


def test_memory_keeps_rows_of_plans_with_other_columns() -> None:
    out = memory()
    out.publish(1, [staged(out, pl.DataFrame({"a": [1]}))])
    out.publish(2, [staged(out, pl.DataFrame({"a": [2.5], "b": ["x"]}))])
    assert out.frame().rows() == [(1.0, None), (2.5, "x")]


def test_console_prints_epoch_and_rows_once(capsys: pytest.CaptureFixture[str]) -> None:
    out = console(rows=2)
    for _ in range(2):
        out.publish(7, [staged(out, FRAME)])
    text = capsys.readouterr().out
    assert text.startswith("epoch 7: 3 rows, first 2\n")
    assert text.count("epoch 7") == 1
    assert pickle.loads(pickle.dumps(out)) == out
    with pytest.raises(ConfigError):
        console(rows=0)


def test_foreach_batch_passes_every_epoch_with_rows_and_repeats_are_the_functions_to_ignore() -> None:
    calls: list[tuple[int, int]] = []
    out = foreach_batch(lambda frame, epoch: calls.append((epoch, frame.height)))
    out.open()
    out.publish(1, [staged(out, FRAME, slot=1), staged(out, FRAME, slot=0)])
    out.publish(2, [])
    out.publish(1, [staged(out, FRAME)])
    assert calls == [(1, 6), (1, 3)]


def test_foreach_batch_travels_to_tasks_without_its_function() -> None:
    lock = threading.Lock()  # cannot be pickled

    def save(frame: pl.DataFrame, epoch: int) -> None:
        with lock:
            raise AssertionError

    copy = pickle.loads(pickle.dumps(for_tasks(foreach_batch(save))))
    assert copy.canonical() == foreach_batch(save).canonical()
    assert copy.encode(FRAME)
    with pytest.raises(ConfigError, match="driver"):
        copy.publish(1, [])
    with pytest.raises(FlowError, match="not a function"):
        foreach_batch("save")  # type: ignore[arg-type]


def test_discard_counts_and_keeps_nothing() -> None:
    out = discard()
    assert out.encode(FRAME) == b""
    for _ in range(2):
        out.publish(1, [Staged(StagedFile("x", 0, 5), lambda: b"", None)])
    assert out.rows() == 5
    assert pickle.loads(pickle.dumps(out)).rows() == 0


@pytest.mark.parametrize("linked", [True, False])
def test_parquet_publishes_one_file_per_epoch_and_slot_and_again_changes_nothing(tmp_path: Path, linked: bool) -> None:
    out = parquet(tmp_path / "out")
    out.open()
    folder = tmp_path / "store" if linked else None
    files = [staged(out, FRAME, slot, folder) for slot in (0, 1)]
    for _ in range(2):
        out.publish(3, files)
    assert sorted(os.listdir(tmp_path / "out")) == ["part-0000000003-0000.parquet", "part-0000000003-0001.parquet"]
    assert pl.read_parquet(tmp_path / "out" / "*.parquet").equals(pl.concat([FRAME, FRAME]))
    assert (os.stat(tmp_path / "out" / "part-0000000003-0000.parquet").st_nlink == 2) == linked


def test_parquet_copies_where_links_are_not_possible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(source: object, target: object, **_: object) -> None:
        raise OSError(errno.EXDEV, "other device")

    monkeypatch.setattr(os, "link", no_link)
    out = parquet(tmp_path / "out")
    out.open()
    for _ in range(2):
        out.publish(1, [staged(out, FRAME, folder=tmp_path / "store")])
    assert pl.read_parquet(tmp_path / "out").equals(FRAME)
    assert os.listdir(tmp_path / "out" / ".meander") == []


def only_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without files that have no name."""
    monkeypatch.setattr(durable, "_UNNAMED", None)


def test_a_start_sweeps_what_a_crash_in_the_middle_of_a_copy_left_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only_named(monkeypatch)
    hidden = tmp_path / "out" / ".meander"
    hidden.mkdir(parents=True)
    (hidden / f".part-0000000001-0000.parquet.{7:016x}").write_bytes(b"half")
    out, write = parquet(tmp_path / "out"), durable.write

    def with_a_start_meanwhile(fd: int, data: bytes) -> None:
        write(fd, data)
        assert len(os.listdir(hidden)) == 2
        out.open()
        assert len(os.listdir(hidden)) == 1, "that of a live process stays"

    monkeypatch.setattr(durable, "write", with_a_start_meanwhile)
    out.publish(1, [staged(out, FRAME)])
    assert os.listdir(hidden) == []
    assert pl.read_parquet(tmp_path / "out").equals(FRAME)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("by", [None, "k"])
def test_replicas_that_copy_the_same_output_at_once_all_succeed_and_no_file_is_ever_seen_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool, by: str | None
) -> None:
    if named:
        only_named(monkeypatch)
    out = parquet(tmp_path / "out", partition_by=by)
    out.open()
    one = staged(out, pl.DataFrame({"k": ["a"], "v": ["x" * 1_000_000]}))
    together, failed, torn = threading.Barrier(3), list[Exception](), list[str]()

    def publish() -> None:
        for epoch in range(25):
            together.wait()
            try:
                out.publish(epoch, [one])
            except Exception as error:  # whatever it is, it would end a replica
                failed.append(error)

    def read() -> None:
        while any(thread.is_alive() for thread in replicas):
            for file in (tmp_path / "out").rglob("*.parquet"):
                data = file.read_bytes()
                if (data[:4], data[-4:]) != (b"PAR1", b"PAR1"):
                    torn.append(file.name)

    replicas = [threading.Thread(target=publish) for _ in range(3)]
    reader = threading.Thread(target=read)
    for thread in (*replicas, reader):
        thread.start()
    for thread in (*replicas, reader):
        thread.join()
    assert (failed, torn) == ([], [])
    assert len(list((tmp_path / "out").rglob("*.parquet"))) == 25


def test_parquet_never_overwrites_nor_adopts_another_flows_file(tmp_path: Path) -> None:
    out = parquet(tmp_path / "out")
    out.open()
    out.publish(1, [staged(out, FRAME)])
    for folder in (None, tmp_path / "store"):
        with pytest.raises(Corrupted, match=r"part-0000000001-0000\.parquet is there already"):
            out.publish(1, [staged(out, FRAME.head(1), folder=folder)])
    assert pl.read_parquet(tmp_path / "out" / "*.parquet").equals(FRAME)


def test_parquet_publishes_no_file_without_rows(tmp_path: Path) -> None:
    out = parquet(tmp_path / "out")
    out.open()
    out.publish(1, [staged(out, FRAME.clear())])
    assert os.listdir(tmp_path / "out") == []


def test_parquet_says_which_folder_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file/out"):
        parquet(tmp_path / "file" / "out").open()
    with pytest.raises(ConfigError, match="s3://"):
        parquet("s3://bucket/out")


def test_two_files_of_one_slot_are_refused_before_anything_is_published(tmp_path: Path) -> None:
    out = parquet(tmp_path / "out")
    out.open()
    with pytest.raises(Corrupted, match="two files for one slot"):
        out.publish(1, [staged(out, FRAME), staged(out, FRAME.head(1))])
    assert os.listdir(tmp_path / "out") == []


PARTED = pl.DataFrame(
    {"day": ["a", "b", "a", None, "..", "x/y:é=%"], "n": [1, 2, 3, 4, 5, 6], "on": [True] * 6}, schema_overrides={"n": pl.Int64}
)


@pytest.mark.parametrize("linked", [True, False])
def test_partitions_are_folders_and_publishing_again_changes_nothing(tmp_path: Path, linked: bool) -> None:
    out = parquet(tmp_path / "out", partition_by=["day", "on"])
    out.open()
    files = [staged(out, PARTED, slot, tmp_path / "store" if linked else None) for slot in (0, 1)]
    for _ in range(2):
        out.publish(3, files)
    found = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.parquet"))
    assert found[:2] == [f"day=../on=true/part-0000000003-000{slot}.parquet" for slot in (0, 1)]
    assert len(found) == 10
    back = pl.read_parquet(tmp_path / "out", hive_partitioning=True, hive_schema={"day": pl.String, "on": pl.String})
    assert sorted(back["n"].to_list()) == sorted([*range(1, 7)] * 2)
    assert set(back.filter(pl.col("n") == 6)["day"]) == {"x/y:é=%"}
    assert set(back.filter(pl.col("n") == 4)["day"]) == {None}
    assert set(back["on"]) == {"true"}


def test_a_crash_in_the_middle_of_partitions_is_made_good_by_publishing_again(tmp_path: Path) -> None:
    out = parquet(tmp_path / "out", partition_by="day")
    out.open()
    file = staged(out, PARTED)
    out.publish(1, [file])
    whole = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*.parquet")}
    assert len(whole) == 5
    for path in sorted(whole)[2:]:
        path.unlink()
    out.publish(1, [file])
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*.parquet")} == whole
    sorted(whole)[0].write_bytes(b"another's")
    with pytest.raises(Corrupted, match="there already"):
        out.publish(1, [file])


def test_partitions_are_columns_that_there_are_and_that_can_be_names(tmp_path: Path) -> None:
    for wrong in ([], ["a", "a"], [""], [1]):
        with pytest.raises(FlowError, match="partition_by"):
            parquet(tmp_path, partition_by=wrong)  # type: ignore[arg-type]
    rows = md.Flow("f").source("in", md.generator("key_value", events=1))
    for column, words in (("nope", "there is no column 'nope'"), ("value", "is Float64")):
        with pytest.raises(FlowError, match=words):
            rows.sink("out", parquet(tmp_path, partition_by=column))
    with pytest.raises(FlowError, match="none is left"):
        rows.select("key", name="keys").sink("out", parquet(tmp_path, partition_by="key"))
    lasting = rows.with_columns(pl.lit(1).cast(pl.Duration("us")).alias("lasts"), name="lasting")
    with pytest.raises(FlowError, match="is Duration"):
        lasting.sink("out", parquet(tmp_path, partition_by="lasts"))


NULL = "__HIVE_DEFAULT_PARTITION__"
ODD = ["", "y" * 300, "é" * 100, None, NULL, NULL.lower(), "y" * 253, ".", "/", "\x00\n", "%5F", "a"]


def odd_flow(out: Path) -> md.Flow:
    flow = md.Flow("odd")
    script = (((0, tuple((value, number) for number, value in enumerate(ODD))),),)
    flow.source("events", Script({"p": pl.String(), "v": pl.Int64()}, script)).sink("out", md.parquet(out, partition_by="p"))
    return flow


def test_values_that_cannot_be_a_folders_name_are_dead_letters_and_all_others_are_published_apart(tmp_path: Path) -> None:
    local = Local(odd_flow(tmp_path / "out"), tmp_path / "state")
    local.run()
    Local(odd_flow(tmp_path / "out"), tmp_path / "state").run()
    paths = (tmp_path / "out").rglob("*.parquet")
    files = {file.parent.name: pl.read_parquet(file, hive_partitioning=False)["v"].to_list() for file in paths}
    assert sorted(files.values()) == [[number] for number in range(3, len(ODD))]
    assert files[f"p={NULL}"] == [3]
    back = dict(pl.read_parquet(tmp_path / "out", hive_partitioning=True).select("v", "p").rows())
    assert back == {number: None if number == 4 else value for number, value in enumerate(ODD) if number > 2}, "Polars takes 4 for null"
    letters = md.read_dead_letters(tmp_path / "state").to_pydict()
    assert [row["v"] for row in map(json.loads, letters["content"])] == [0, 1, 2]
    assert [reason.split(", which")[0].split(": ")[0] for reason in letters["reason"]] == [
        "the value of 'p' is empty",
        "the value of 'p' is too long for a folder's name",
        "the value of 'p' is too long for a folder's name",
    ]
    assert local.manifest.totals["dead_letters"] == 3


def test_a_strict_flow_stops_at_a_value_that_cannot_be_a_folders_name_before_it_commits(tmp_path: Path) -> None:
    local = Local(odd_flow(tmp_path / "out"), tmp_path / "state", strict=True)
    with pytest.raises(BadInput, match=r"operator 'out', epoch 1, row .*: the value of 'p' is empty"):
        local.run()
    assert local.manifest.epoch == 0


def test_partitions_that_make_too_long_a_path_together_are_refused(tmp_path: Path) -> None:
    columns = [f"c{number}" for number in range(20)]
    out = parquet(tmp_path / "out", partition_by=columns)
    assert isinstance(out, PartitionedParquetSink)
    frame = pl.DataFrame({**{name: ["x" * 240, "x", None] for name in columns}, "v": [1, 2, 3]})
    reasons = out.refused(frame)
    assert reasons is not None
    assert [reason and reason.split(":")[0] for reason in reasons] == ["the values of partition_by are too long for a path", None, None]
    assert out.refused(frame.tail(2)) is None


def test_values_that_look_alike_in_a_path_share_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitioned, "_name", lambda value: "same")
    out = parquet(tmp_path / "out", partition_by="day")
    out.open()
    out.publish(1, [staged(out, PARTED)])
    assert [file.parent.name for file in (tmp_path / "out").rglob("*.parquet")] == ["day=same"]
    assert sorted(pl.read_parquet(tmp_path / "out")["n"]) == [1, 2, 3, 4, 5, 6]
