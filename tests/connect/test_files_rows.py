"""What a split reads, and what becomes of input that cannot be read: nothing is lost and nothing is guessed."""

from __future__ import annotations

import datetime as dt
import json
import os
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meander.connect.files import files
from meander.connect.source import Batch
from meander.errors import Corrupted

SCHEMA = {"customer": "string", "amount": "double", "n": "long"}


def read(folder: Path, name: str, data: bytes, format: str, schema: Any = SCHEMA, **options: Any) -> Batch:
    path = folder / name
    path.write_bytes(data)
    stat = path.stat()
    described = files(folder, format=format, schema=schema, **options)
    batch = described.read({"path": name, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns})
    assert batch.frame.schema == described.schema()
    return batch


def good_line(number: int) -> bytes:
    return json.dumps({"customer": f"c{number}", "amount": number / 2, "n": number, "other": [1]}).encode()


BAD_JSON = {
    b'{"customer":"x","amount":1.5,"n":1': "not JSON",
    b"hello": "not JSON",
    b"[1,2]": "a list, not an object",
    b"17": "a number, not an object",
    b'{"customer":"x","amount":"12x","n":1}': "field 'amount' is text (\"12x\"), not Float64",
    b'{"customer":"x","amount":"12","n":1}': "field 'amount' is text",
    b'{"customer":5,"amount":1,"n":1}': "field 'customer' is a number (5), not String",
    b'{"customer":"x","amount":true,"n":1}': "field 'amount' is a boolean",
    b'{"customer":"x","amount":1,"n":1.5}': "field 'n' is a number (1.5), not Int64",
    b'{"customer":"x","amount":1,"n":99999999999999999999}': "99999999999999999999",
    b'{"customer":"x","n":1}': "no field 'amount'",
    b"{}": "no field 'customer'",
    b'{"customer":"x","inner":{"amount":null},"n":1}': "no field 'amount'",
    b'{"customer":"x","amount":1,"n":1}{"customer":"y","amount":1,"n":1}': "Extra data",
    b'{"customer":"x","amount":1,"n":1,"n":2}': "twice",
    b'{"customer":"\xff","amount":1,"n":1}': "not UTF-8",
    b'{"customer":"\\ud800","amount":1,"n":1}': "",
    b'{"customer":"x","amount":1e999,"n":1}': "",
}


@pytest.mark.parametrize("bad", BAD_JSON, ids=lambda line: line.decode("latin-1")[:40])
def test_a_bad_json_line_is_set_aside_with_its_line_number_reason_and_content(tmp_path: Path, bad: bytes) -> None:
    batch = read(tmp_path, "a.json", b"\n".join([good_line(0), good_line(1), bad, b"", good_line(2), b""]), "json")
    assert batch.frame["n"].to_list() == [0, 1, 2]
    (row,) = batch.bad
    assert row.position == f"{tmp_path.name}/a.json:3"
    assert BAD_JSON[bad] in row.reason
    assert row.content == bad.decode("utf-8", "replace")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(st.sampled_from(sorted(BAD_JSON)), st.just(b""), st.integers(0, 99).map(good_line)), max_size=30), st.booleans())
def test_good_and_bad_json_lines_together_are_all_lines_in_order(tmp_path: Path, lines: list[bytes], crlf: bool) -> None:
    end = b"\r\n" if crlf else b"\n"
    batch = read(tmp_path, "a.json", end.join([*lines, b"{}"]), "json")
    good = [json.loads(line)["n"] for line in lines if line and line not in BAD_JSON]
    bad = [line.decode("utf-8", "replace") for line in [*lines, b"{}"] if line in BAD_JSON]
    assert batch.frame["n"].to_list() == good
    assert [row.content for row in batch.bad] == bad


def test_objects_that_span_lines_or_share_one_do_not_cancel_out(tmp_path: Path) -> None:
    spanning = b'{"customer":"x","amount":1,\n"n":1}\n{"customer":"x","amount":1,"n":2}{"customer":"x","amount":1,"n":3}\n'
    batch = read(tmp_path, "a.json", spanning + good_line(4), "json")
    assert batch.frame["n"].to_list() == [4]
    assert len(batch.bad) == 3


def test_a_raw_line_break_inside_a_json_string_makes_two_bad_lines(tmp_path: Path) -> None:
    batch = read(tmp_path, "a.json", b'{"customer":"x}\n{y","amount":1,"n":1}\n' + good_line(1), "json")
    assert batch.frame["n"].to_list() == [1]
    assert len(batch.bad) == 2


def test_an_explicit_null_is_a_null_and_an_absent_field_only_where_it_is_optional(tmp_path: Path) -> None:
    lines = b'{"customer":null,"amount":null,"n": null}\n{"customer":"\\"amount\\":null","n":1}\n'
    strict = read(tmp_path, "a.json", lines, "json")
    assert strict.frame.rows() == [(None, None, None)]
    assert [row.reason for row in strict.bad] == ["no field 'amount'"]
    lenient = read(tmp_path, "a.json", lines, "json", optional=["amount"])
    assert lenient.frame.rows() == [(None, None, None), ('"amount":null', None, 1)]
    assert not lenient.bad


def test_json_times_dates_and_nested_values_have_their_types(tmp_path: Path) -> None:
    schema = {
        "t": "timestamp",
        "d": "date",
        "z": pl.Datetime("ms", "Europe/Rome"),
        "l": pl.List(pl.Int64),
        "f": "float",
        "b": "binary",
        "i": "int",
    }
    line = {"t": "2024-05-01T10:00:00+02:00", "d": "2024-05-01", "z": "2024-05-01T10:00:00Z", "l": [1, 2], "f": 1.5, "b": "xy", "i": 7}
    worse = [{**line, "t": "yesterday"}, {**line, "t": 17}, {**line, "d": "2024-13-01"}, {**line, "i": 3_000_000_000}, {**line, "l": ["x"]}]
    batch = read(tmp_path, "a.json", "\n".join(json.dumps(fields) for fields in [line, *worse]).encode(), "json", schema)
    assert len(batch.bad) == len(worse)
    row = batch.frame.row(0, named=True)
    assert row["t"] == dt.datetime(2024, 5, 1, 8)
    assert row["d"] == dt.date(2024, 5, 1)
    assert row["z"].astimezone(dt.UTC) == dt.datetime(2024, 5, 1, 10, tzinfo=dt.UTC)
    assert (row["l"], row["f"], row["b"], row["i"]) == ([1, 2], 1.5, b"xy", 7)


BAD_CSV = {
    b"x,12x,1": "column 'amount'",
    b"x,1.5,1.5": "column 'n': '1.5' is not Int64",
    b"x,1.5": "2 fields, the header has 3",
    b"x,1.5,1,9": "4 fields, the header has 3",
    b'"x,1.5,1': "a quote is not closed",
    b'x,1.5,"1': "a quote is not closed",
    b"x,1.5,99999999999999999999": "column 'n'",
    b"\xff,1.5,1": "not UTF-8",
    b"x,1\r.5,1": "carriage return",
}


@pytest.mark.parametrize("bad", BAD_CSV, ids=lambda line: line.decode("latin-1"))
def test_a_bad_csv_line_is_set_aside_with_its_line_number_reason_and_content(tmp_path: Path, bad: bytes) -> None:
    batch = read(tmp_path, "a.csv", b"customer,amount,n\n" + b"\n".join([b"a,0.5,0", bad, b"", b'"b, ""c""",,2', b""]), "csv")
    assert batch.frame.rows() == [("a", 0.5, 0), ('b, "c"', None, 2)]
    (row,) = batch.bad
    assert row.position == f"{tmp_path.name}/a.csv:3"
    assert BAD_CSV[bad] in row.reason
    assert row.content == bad.decode("utf-8", "replace")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.one_of(st.sampled_from(sorted(BAD_CSV)), st.just(b""), st.integers(0, 99).map(lambda n: b'"a",1.5,%d' % n)), max_size=30),
    st.booleans(),
)
def test_good_and_bad_csv_lines_together_are_all_lines_in_order(tmp_path: Path, lines: list[bytes], crlf: bool) -> None:
    end = b"\r\n" if crlf else b"\n"
    batch = read(tmp_path, "a.csv", end.join([b"customer,amount,n", *lines, b""]), "csv")
    assert batch.frame["n"].to_list() == [int(line.split(b",")[2]) for line in lines if line and line not in BAD_CSV]
    assert [row.content for row in batch.bad] == [line.decode("utf-8", "replace") for line in lines if line in BAD_CSV]


def test_csv_empty_fields_are_null_quoted_empty_text_is_not_and_zones_may_be_mixed(tmp_path: Path) -> None:
    schema = {"s": "string", "t": "timestamp", "x": "double"}
    data = b'\xef\xbb\xbfx,s,t,ignored\n,,2024-01-01 00:00:00,1\n1,"",2024-01-01T00:00:00Z,2\nnan,NULL,2024-01-01T01:00:00+01:00,\n'
    batch = read(tmp_path, "a.csv", data, "csv", schema)
    assert not batch.bad
    assert batch.frame["s"].to_list() == [None, "", "NULL"]
    assert batch.frame["t"].to_list() == [dt.datetime(2024, 1, 1)] * 3
    assert batch.frame["x"].is_nan().to_list() == [None, False, True]


def test_a_csv_without_a_declared_column_is_one_bad_row_for_the_file(tmp_path: Path) -> None:
    batch = read(tmp_path, "a.csv", b"customer,n\na,1\nb,2\n", "csv")
    assert batch.frame.height == 0
    assert [(row.position, row.reason) for row in batch.bad] == [
        (f"{tmp_path.name}/a.csv:1", "no column 'amount'; the header has customer, n")
    ]


@pytest.mark.parametrize("format", ["json", "csv", "parquet"])
def test_an_empty_file_has_no_rows_and_is_said_to_be_empty(tmp_path: Path, format: str) -> None:
    batch = read(tmp_path, f"a.{format}", b"", format)
    assert batch.frame.height == 0
    assert [row.reason for row in batch.bad] == ["empty file"]


def parquet_bytes(frame: pl.DataFrame, folder: Path) -> bytes:
    frame.write_parquet(folder / ".bytes")
    return (folder / ".bytes").read_bytes()


def test_parquet_reads_only_the_declared_columns_and_widens_them_safely(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {
            "extra": ["x"],
            "n": pl.Series([7], dtype=pl.Int32),
            "amount": pl.Series([0.5], dtype=pl.Float32),
            "customer": pl.Series(["c"], dtype=pl.Categorical),
        }
    )
    batch = read(tmp_path, "a.parquet", parquet_bytes(frame, tmp_path), "parquet")
    assert batch.frame.rows() == [("c", 0.5, 7)]


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (pl.DataFrame({"customer": ["a"], "n": [1]}), "no column 'amount'; the file has customer, n"),
        (pl.DataFrame({"customer": ["a"], "amount": ["1"], "n": [1]}), "column 'amount' is String, not Float64"),
        (pl.DataFrame({"customer": ["a"], "amount": [1.0], "n": [1.0]}), "column 'n' is Float64, not Int64"),
        (pl.DataFrame({"customer": ["a"], "amount": [1], "n": [1]}), "column 'amount' is Int64, not Float64"),
    ],
)
def test_parquet_with_other_columns_is_one_bad_row_for_the_file(tmp_path: Path, frame: pl.DataFrame, reason: str) -> None:
    batch = read(tmp_path, "a.parquet", parquet_bytes(frame, tmp_path), "parquet")
    assert batch.frame.height == 0
    assert [(row.position, row.reason) for row in batch.bad] == [(f"{tmp_path.name}/a.parquet", reason)]


@pytest.mark.parametrize("damage", ["truncated", "garbage", "flipped"])
def test_damaged_parquet_is_one_bad_row_for_the_file(tmp_path: Path, damage: str) -> None:
    whole = parquet_bytes(pl.DataFrame({"customer": [f"c{i}" for i in range(5000)], "amount": [0.5] * 5000, "n": range(5000)}), tmp_path)
    data = {
        "truncated": whole[: len(whole) // 2],
        "garbage": b"not parquet at all",
        "flipped": whole[:4] + bytes(b ^ 0xFF for b in whole[4:900]) + whole[900:],
    }
    batch = read(tmp_path, "a.parquet", data[damage], "parquet")
    assert batch.frame.height == 0
    assert [row.reason.partition(":")[0] for row in batch.bad] == ["not readable as Parquet"]


def test_a_file_that_changed_or_went_after_it_was_decided_stops_the_flow_and_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(good_line(1) + b"\n")
    described = files(tmp_path, format="json", schema=SCHEMA)
    stat = path.stat()
    payload = {"path": "a.json", "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
    assert described.read(payload).frame.height == 1
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    with pytest.raises(Corrupted, match=r"a\.json changed after it was decided"):
        described.read(payload)
    path.unlink()
    with pytest.raises(Corrupted, match=r"a\.json is gone"):
        described.read(payload)


def test_a_long_bad_line_is_kept_up_to_ten_thousand_bytes(tmp_path: Path) -> None:
    batch = read(tmp_path, "a.json", b"x" * 50_000, "json")
    assert len(batch.bad[0].content) == 10_000


def test_bad_lines_far_apart_keep_their_numbers_and_the_good_ones_their_order(tmp_path: Path) -> None:
    lines = [b"bad" if number in (5, 2047, 2048, 6000) else good_line(number) for number in range(7000)]
    batch = read(tmp_path, "a.json", b"\n".join(lines), "json")
    assert [row.position.rpartition(":")[2] for row in batch.bad] == ["6", "2048", "2049", "6001"]
    assert batch.frame["n"].to_list() == [number for number in range(7000) if lines[number] != b"bad"]


def test_every_good_row_knows_the_line_it_stood_in(tmp_path: Path) -> None:
    lines = [good_line(0), b"bad", b"", b"   ", good_line(1), b"{", good_line(2)]
    batch = read(tmp_path, "a.json", b"\n".join(lines), "json")
    assert batch.position is not None
    assert [batch.position(row) for row in range(3)] == [f"{tmp_path.name}/a.json:{line}" for line in (1, 5, 7)]


@pytest.mark.parametrize("text", ["0.5", "1e3", "inf", "-Inf", "nan", " 7 ", "+1", "12x", "1_0", "0x1p3", "1,5", "--1", "infinity"])
@pytest.mark.parametrize("kind", ["double", "long", "boolean", "timestamp", "date"])
def test_whether_a_csv_value_is_good_does_not_depend_on_its_neighbours(tmp_path: Path, text: str, kind: str) -> None:
    value = f'"{text}"' if "," in text else text
    alone = read(tmp_path, "a.csv", f"a,b\n{value},x\n".encode(), "csv", {"a": kind})
    beside = read(tmp_path, "b.csv", f"a,b\n{value},x\none field\n".encode(), "csv", {"a": kind})
    assert (alone.frame.height, len(alone.bad)) == (beside.frame.height, len(beside.bad) - 1)


@pytest.mark.parametrize(
    "text", ["1", "1.0", "-0", "1e3", "NaN", "Infinity", "Inf", "-Inf", "nan", '"x"', "true", "01", "1.", "+1", "[]", "{}"]
)
@pytest.mark.parametrize("kind", ["double", "long", "boolean", "string"])
def test_whether_a_json_value_is_good_does_not_depend_on_its_neighbours(tmp_path: Path, text: str, kind: str) -> None:
    alone = read(tmp_path, "a.json", f'{{"a":{text}}}\n'.encode(), "json", {"a": kind})
    beside = read(tmp_path, "b.json", f'{{"a":{text}}}\nbad\n'.encode(), "json", {"a": kind})
    assert (alone.frame.height, len(alone.bad)) == (beside.frame.height, len(beside.bad) - 1)


@pytest.mark.parametrize("format", ["json", "csv", "parquet"])
def test_an_optional_column_that_a_row_or_a_file_lacks_is_null(tmp_path: Path, format: str) -> None:
    schema = {"id": "int", "at": "date", "more": "timestamp", "name": "string"}
    rows = pl.DataFrame({"id": [1, 2], "other": ["x", "y"]}, {"id": pl.Int32, "other": pl.String})
    data = {"json": b'{"id": 1, "other": "x"}\n{"id": 2}\n', "csv": b"id,other\n1,x\n2,y\n", "parquet": b""}[format]
    batch = read(tmp_path, f"a.{format}", data or parquet_bytes(rows, tmp_path), format, schema, optional=["at", "more", "name"])
    assert (batch.bad, batch.frame.rows()) == ((), [(1, None, None, None), (2, None, None, None)])
    assert [str(dtype) for dtype in batch.frame.dtypes] == ["Int32", "Date", "Datetime(time_unit='us', time_zone=None)", "String"]
    alone = read(tmp_path, f"b.{format}", data or parquet_bytes(rows, tmp_path), format, {"name": "string"}, optional=["name"])
    assert alone.frame.rows() == [(None,), (None,)]


def test_a_csv_line_that_is_bad_beside_an_optional_column_that_is_absent_is_set_aside_alone(tmp_path: Path) -> None:
    batch = read(tmp_path, "a.csv", b"id\n1\nx\n3\n", "csv", {"id": "int", "name": "string"}, optional=["name"])
    assert batch.frame.rows() == [(1, None), (3, None)]
    assert [bad.position for bad in batch.bad] == [f"{tmp_path.name}/a.csv:3"]


def test_an_optional_column_of_another_type_is_said_of_every_piece_of_a_parquet_file(tmp_path: Path) -> None:
    """The pieces before may have been read when the source did not have it yet."""
    pl.DataFrame({"id": [1, 2, 3, 4], "name": [1, 2, 3, 4]}).write_parquet(tmp_path / "a.parquet", row_group_size=2)
    source = files(tmp_path, schema={"id": "long", "name": "string"}, optional=["name"], max_rows_per_epoch=2)
    cursor = source.cursor({}, set())
    cursor.look()
    splits = [split for _ in range(2) for split in cursor.choose(0.0, True).splits]
    cursor.close()
    told = [[bad.position.split("/")[1] for bad in source.read(split.payload).bad] for split in splits]
    assert told == [["a.parquet"], ["a.parquet#groups 1-1"]]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [(pl.Int16, pl.Float32), (pl.List(pl.Int32), pl.List(pl.Int64)), (pl.List(pl.Float32), pl.List(pl.Float64))],
)
def test_parquet_widens_whatever_a_source_may_widen(tmp_path: Path, given: Any, wanted: Any) -> None:
    value: Any = [[1]] if isinstance(given, pl.List) else [1]
    data = parquet_bytes(pl.DataFrame({"x": pl.Series(value, dtype=given)}), tmp_path)
    batch = read(tmp_path, "a.parquet", data, "parquet", {"x": wanted})
    assert (batch.bad, batch.frame["x"].to_list(), batch.frame.schema["x"]) == ((), value, wanted)
