"""Reads the lines of a JSON or CSV file, or of a byte range of one: columns for the good lines, a BadRow for each other one.

A range [start, end) owns the lines that begin in it, so that ranges that meet share no line and
lose none. All lines of a split are parsed at once by pyarrow, which refuses values that it cannot
convert instead of guessing. Only when it refuses, or when the result leaves a doubt (a null that
may be an absent field, a row that may span lines), lines are looked at one by one. Good and bad
lines together are all lines that are not blank.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

from meander.connect import csv_lines, json_lines
from meander.connect.source import BadRow, Batch

_CONTENT_CAP = 10_000
_READ_ON = 1 << 16
_CHUNK_LINES = 2048


class Parser(Protocol):
    """One format: turns lines into columns, and explains bad lines."""

    def parse(self, data: bytes) -> pl.DataFrame:
        """The rows of whole lines; raises ValueError (or pyarrow's subclasses of it) when any of them does not fit."""

    def is_one_row_per_line(self, data: bytes, lines: Lines) -> bool:
        """True only if it is certain that no row spans lines and no line that is parsed holds two rows."""

    def doubtful(self, frame: pl.DataFrame, lines: Lines) -> dict[int, str]:
        """Lines that were parsed but are bad all the same, with the reason."""

    def fault(self, line: bytes) -> str | None:
        """The fault of a line that is certainly bad, in words; None where only parsing can tell."""


@dataclass(frozen=True)
class Lines:
    """The lines of a piece of a file that are not blank, without their line ends."""

    data: bytes
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int64]
    """Each line's number within the piece, from 0, blank lines counted."""

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> bytes:
        return self.data[self.starts[index] : self.ends[index]]

    def part(self, first: int, last: int) -> Lines:
        """Lines [first, last) as lines of a piece of their own."""
        begin = int(self.starts[first])
        end = int(self.starts[last]) if last < len(self) else len(self.data)
        return Lines(self.data[begin:end], self.starts[first:last] - begin, self.ends[first:last] - begin, self.numbers[first:last])


def split_lines(data: bytes) -> Lines:
    octets = np.frombuffer(data, dtype=np.uint8)
    breaks = np.flatnonzero(octets == 10).astype(np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), breaks + 1])
    ends = np.concatenate([breaks, np.full(1, len(data), np.int64)])
    # A carriage return before the line break belongs to it.
    filled = ends > starts
    if b"\r" in data:
        ends = ends - (filled & (octets[np.maximum(ends - 1, 0)] == 13))
        filled = ends > starts
    return Lines(data, starts[filled], ends[filled], np.flatnonzero(filled).astype(np.int64))


def read(path: str, shown: str, format: str, schema: pl.Schema, optional: frozenset[str], payload: dict[str, Any]) -> Batch:
    start, end = payload.get("start", 0), payload.get("end", payload["size"])
    whole = "start" not in payload
    with open(path, "rb") as file:
        begin, data = read_range(file, start, end)
        head = data if begin == 0 else _first_line_of(file)
    first_line = 1
    parser: Parser
    if format == "json":
        parser = json_lines.JsonParser(schema, optional)
        if begin == 0 and data.startswith(b"\xef\xbb\xbf"):
            begin, data = 3, data[3:]
    else:
        header, length = csv_lines.read_header(head)
        missing = [name for name in schema if name not in header and name not in optional]
        repeated = sorted({name for name in header if header.count(name) > 1})
        if missing or repeated:
            reason = f"no column {missing[0]!r}; the header has {', '.join(header)}" if missing else f"the header has {repeated[0]!r} twice"
            # Said once for the file, by its first range.
            whole_file = BadRow(f"{shown}:1", reason, f"<file of {payload['size']} bytes, kept>")
            return Batch(pl.DataFrame(schema=schema), (whole_file,) if start == 0 else ())
        parser = csv_lines.CsvParser(schema, header)
        if begin == 0:
            begin, data, first_line = length, data[length:], 2
    frame, faults = _parse_lines(data, parser, schema)
    lines, reasons = faults

    def place(index: int) -> str:
        return f"{shown}:{first_line + int(lines.numbers[index])}" if whole else f"{shown}@{begin + int(lines.starts[index])}"

    bad = tuple(BadRow(place(index), reasons[index], lines[index][:_CONTENT_CAP].decode("utf-8", "replace")) for index in sorted(reasons))
    return Batch(frame, bad, lambda row: place(int(_good(lines, reasons)[row])))


def _good(lines: Lines, reasons: dict[int, str]) -> npt.NDArray[np.intp]:
    """The lines that became rows. Computed only when the place of a row is needed."""
    return np.array([index for index in range(len(lines)) if index not in reasons and lines[index].strip()], np.intp)


def read_range(file: Any, start: int, end: int) -> tuple[int, bytes]:
    """Where the first line that begins in [start, end) begins, and all lines that begin there, the last one to its end."""
    skip = 0
    if start > 0:
        # The line that is under way at ``start`` belongs to the range before, unless a line begins exactly there.
        file.seek(start - 1)
        data = file.read(end - start + 1)
        skip = data.find(b"\n") + 1
        if skip == 0 or skip > end - start:
            return end, b""
    else:
        file.seek(0)
        data = file.read(end)
    parts = [data[skip:]]
    while parts[-1] and b"\n" not in parts[-1][-1:]:
        more = file.read(_READ_ON)
        stop = more.find(b"\n")
        parts.append(more if stop < 0 else more[: stop + 1])
    return max(0, start - 1) + skip, b"".join(parts)


def _first_line_of(file: Any) -> bytes:
    file.seek(0)
    line: bytes = file.readline()
    return line


def _parse_lines(data: bytes, parser: Parser, schema: pl.Schema) -> tuple[pl.DataFrame, tuple[Lines, dict[int, str]]]:
    """All at once; if that leaves a doubt, chunk by chunk, so that a few bad lines cost a few chunks a closer look."""
    lines = split_lines(data)
    whole = _parse_at_once(lines, parser) if len(lines) else (pl.DataFrame(schema=schema), {})
    if whole is not None:
        return whole[0], (lines, whole[1])
    frames: list[pl.DataFrame] = []
    reasons: dict[int, str] = {}
    for first in range(0, len(lines), _CHUNK_LINES):
        chunk = lines.part(first, min(first + _CHUNK_LINES, len(lines)))
        frame, found = _parse_at_once(chunk, parser) or _parse_carefully(chunk, parser, schema)
        frames.append(frame)
        reasons.update((first + index, reason) for index, reason in found.items())
    return pl.concat(frames), (lines, reasons)


def _parse_at_once(lines: Lines, parser: Parser) -> tuple[pl.DataFrame, dict[int, str]] | None:
    """The rows and the bad lines, or None if only a parse line by line can find the bad ones."""
    if not _is_utf8(lines.data) or not parser.is_one_row_per_line(lines.data, lines):
        return None
    try:
        frame = parser.parse(lines.data)
    except ValueError:
        return None
    if frame.height != len(lines):
        return None
    reasons = parser.doubtful(frame, lines)
    if reasons:
        keep = np.ones(len(lines), dtype=bool)
        keep[list(reasons)] = False
        frame = frame.filter(pl.Series(keep))
    return frame, reasons


def _parse_carefully(lines: Lines, parser: Parser, schema: pl.Schema) -> tuple[pl.DataFrame, dict[int, str]]:
    """Set aside every line that is certainly bad, then halve what still does not parse down to the lines that do not."""
    reasons: dict[int, str] = {}
    good: list[tuple[int, bytes]] = []
    for index, (start, end) in enumerate(zip(lines.starts.tolist(), lines.ends.tolist(), strict=True)):
        line = lines.data[start:end]
        if not line.strip():
            continue
        fault = parser.fault(line) if _is_utf8(line) else "not UTF-8 text"
        if fault is None:
            good.append((index, line))
        else:
            reasons[index] = fault
    frames: list[pl.DataFrame] = []
    pieces = [good] if good else []
    while pieces:
        piece = pieces.pop()
        try:
            frame = parser.parse(b"\n".join([*(line for _, line in piece), b""]))
            if frame.height != len(piece):
                raise ValueError("not one row")
            frames.append(frame)
        except ValueError as error:
            if len(piece) == 1:
                reasons[piece[0][0]] = _shorten(str(error))
            else:
                half = len(piece) // 2
                pieces += [piece[half:], piece[:half]]
    return pl.concat(frames) if frames else pl.DataFrame(schema=schema), reasons


def _is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _shorten(message: str) -> str:
    """pyarrow's message without the row number, which counts within the piece and would mislead."""
    return re.sub(r"(Row #\d+: | in row \d+)", "", message.strip().splitlines()[0])[:300] if message.strip() else "cannot be parsed"
