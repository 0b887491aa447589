"""A reader of stores that was written after docs/formats.md and nothing else: the standard library and pyarrow, no Meander.

It reads the log, the manifest, and a table's rows at the newest epoch; and what an aggregate and a tumbling window show of them.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa

Json = dict[str, Any]
Row = dict[str, Any]
_MASK = (1 << 64) - 1
_NULL, _INTEGER, _FLOAT, _TEXT = 0x9E3779B97F4A7C15, 0x2545F4914F6CDD1D, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F
_COMBINE = 0xE7037ED1A0B428DB
SOONEST = -(1 << 63)


class Refused(Exception):
    """An object of a format that is not known here."""


# -- objects ----------------------------------------------------------------------------------------------------------


def known(fields: Json) -> Json:
    if fields.get("format") != 1:
        raise Refused(f"format {fields.get('format')}")
    return fields


def read_json(store: Path, name: str) -> Json | None:
    place = store / name
    return known(json.loads(place.read_bytes())) if place.exists() else None


# -- log and manifest -------------------------------------------------------------------------------------------------


def read_manifest(store: Path) -> Json:
    """The newest manifest: the newest snapshot, and every entry behind it."""
    if read_json(store, "format") is None:
        raise Refused("the store does not say its format")
    names = [place.name for place in (store / "manifest").iterdir()] if (store / "manifest").exists() else []
    newest = max(((int(name.split("-")[1]), name) for name in names), default=None)
    if newest is None:
        manifest: Json = {
            "generation": 0,
            "position": -1,
            "epoch": 0,
            "key_groups": 128,
            "tables": {},
            "flushed": {},
            "times": {},
            "plan": {},
        }
    else:
        manifest = read_json(store, f"manifest/{newest[1]}") or {}
    while True:
        entry = read_json(store, f"log/{manifest['generation']:08d}/{manifest['position'] + 1:012d}")
        if entry is None:
            return manifest
        manifest = {**manifest, "position": entry["position"], "generation": entry["generation"]}
        apply(manifest, entry)


def apply(manifest: Json, entry: Json) -> None:
    """What an entry does to the parts of a manifest that are needed to read state."""
    kind = entry["kind"]
    if kind == "takeover":
        manifest["key_groups"] = entry.get("key_groups", manifest["key_groups"])
    elif kind == "epoch":
        apply_epoch(manifest, entry)
    elif kind == "compaction":
        apply_merge(manifest["tables"][entry["table"]], entry)
    elif kind == "compactions":
        for merge in entry["merges"]:
            apply_merge(manifest["tables"][merge["table"]], merge)
    elif kind not in ("names", "trial", "pass", "routing"):
        raise Refused(f"entry of kind {kind}")


def apply_epoch(manifest: Json, entry: Json) -> None:
    assert entry["epoch"] == manifest["epoch"] + 1
    tables = {name: dict(table) for name, table in manifest["tables"].items() if name not in entry["forgets"]}
    for name, added in entry["tables"].items():
        table = tables.setdefault(name, {"keys": added["keys"], "segments": [], **{k: added[k] for k in ("time",) if k in added}})
        if "time" in table:
            table["floor"] = added.get("floor", table.get("floor", SOONEST))
        table["segments"] = [one for one in table["segments"] if groups_of(one)] + added["segments"]
    for name in entry["drops"]:
        if name in tables:
            tables[name]["segments"] = [[*one[:4], "0", *one[5:]] for one in tables[name]["segments"][:1]]
            tables[name]["floor"] = SOONEST
    for name, floor in entry["floors"].items():
        if name in tables:
            tables[name]["floor"] = floor
    manifest.update(tables=tables, epoch=entry["epoch"], plan=entry["plan"], times=entry["times"], flushed=entry["flushed"])


def apply_merge(table: Json, merge: Json) -> None:
    output, left = merge["output"], []
    for one in table["segments"]:
        groups = groups_of(one) & ~(groups_of(output) if one[0] in merge["inputs"] else 0)
        if groups:
            left.append([*one[:4], f"{groups:x}", *one[5:]])
    if output[1] and groups_of(output):
        left.append(output)
    # A table in which nothing is left keeps a segment without key groups, for its columns.
    table["segments"] = left or [[*table["segments"][0][:4], "0"]]


def groups_of(segment: list[Any]) -> int:
    return int(segment[4], 16)


# -- segments ---------------------------------------------------------------------------------------------------------


def read_rows(store: Path, manifest: Json, name: str) -> list[Row]:
    """The newest row of every key of a table."""
    table = manifest["tables"][name]
    shift = 64 - (manifest["key_groups"].bit_length() - 1)
    found: dict[tuple[Any, ...], Row] = {}
    floor = table["floor"] if "time" in table else SOONEST
    for place, _, _, _, groups, *ends in sorted(table["segments"], key=lambda one: -one[3]):
        if not int(groups, 16) or (ends and ends[-1] <= floor):
            continue  # nothing of it counts, and it may be gone
        for row in rows_of(store / place):
            key = tuple(row[column] for column in table["keys"])
            over = "time" in table and row[table["time"]] <= floor
            if int(groups, 16) >> (row["__hash"] >> shift) & 1 and not over and key not in found:
                found[key] = row
    return [row for row in found.values() if not row.get("__deleted")]


def rows_of(place: Path) -> list[Row]:
    """All rows of a segment; those of later chapters first."""
    reader = pa.ipc.open_file(place.read_bytes())
    index = known(json.loads(reader.schema.metadata[b"meander"]))
    batches = [reader.get_batch(number).to_pylist() for number in range(reader.num_record_batches)]
    rows: list[Row] = []
    for blocks, *_ in reversed(index.get("chapters", [[len(batches)]])):
        mine, batches = batches[len(batches) - blocks :], batches[: len(batches) - blocks]
        rows += [row for batch in mine for row in batch]
    assert len(rows) == index["rows"]
    return rows


# -- what operators show ----------------------------------------------------------------------------------------------


def shown(rows: list[Row], keys: list[str], aggregates: dict[str, str]) -> list[Row]:
    """The keys, and the finished values of aggregates: their alias and kind."""
    return [
        {**{key: row[key] for key in keys}, **{alias: finished(row, alias, kind) for alias, kind in aggregates.items()}} for row in rows
    ]


def finished(row: Row, alias: str, kind: str) -> Any:
    if kind == "count":
        return row[f"{alias}.n"]
    if kind == "mean":
        return row[f"{alias}.sum"] / row[f"{alias}.n"] if row[f"{alias}.n"] else None
    return row[f"{alias}.{'sum' if kind == 'sum' else 'value'}"]


def open_windows(manifest: Json, operator: str, rows: list[Row], watermark: str, size: int, lateness: int = 0) -> list[Row]:
    """The tumbling windows that are open, with their beginning: a window's pane is the window."""
    late = manifest["times"][watermark]["late"]
    closed = max(late, manifest["flushed"].get(operator, late))
    return [row for row in rows if row["__pane"] + size + lateness > closed]


# -- key hashes -------------------------------------------------------------------------------------------------------


def mix(word: int) -> int:
    word ^= word >> 33
    word = word * 0xFF51AFD7ED558CCD & _MASK
    word ^= word >> 33
    word = word * 0xC4CEB9FE1A85EC53 & _MASK
    return word ^ word >> 33


def hash_key(values: list[Any]) -> int:
    hashed = [hash_value(value) for value in values]
    found = hashed[0]
    for other in hashed[1:]:
        found = mix((found * _COMBINE + other) & _MASK)
    return found


def hash_value(value: Any) -> int:
    if value is None:
        return _NULL
    if isinstance(value, bool | int):
        return mix((int(value) + _INTEGER) & _MASK)
    if isinstance(value, float):
        bits = 0x7FF8000000000000 if value != value else struct.unpack("<Q", struct.pack("<d", value + 0.0))[0]
        return mix((bits + _FLOAT) & _MASK)
    data = value.encode() if isinstance(value, str) else value
    return hash_text(data)


def hash_text(data: bytes) -> int:
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]
    found = _TEXT
    for number, word in enumerate(words[:8]):
        found = mix(((found ^ word) * _COMBINE + 8 * number + 1) & _MASK)
    if len(words) > 8:
        behind = sum(mix((word ^ mix(place + _TEXT & _MASK)) * _COMBINE & _MASK) for place, word in enumerate(words[8:])) & _MASK
        found = mix(((found ^ behind) * _COMBINE + 65) & _MASK)
    return mix((found + len(data)) & _MASK)
