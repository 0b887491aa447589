"""Applies stateless operators to rows, and makes dead letters of rows on which they fail.

An operator that raises on a batch is tried on its halves, and so on, until the bad rows are alone:
they become dead letters with the reason, and the other rows go on. This is sound because stateless
operators are row-local by contract. A batch for a ``map_batches`` with ``row_local=False`` is not
divided: its exception stops the flow. A result with other columns than planned stops the flow, too:
that is the flow's fault, not a row's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from meander.errors import BadInput, Corrupted, FlowError, Retryable
from meander.plan.graph import Node
from meander.plan.operators import Filter, MapBatches, Select, WithColumns, conform
from meander.task.rows import UNIT, Rows, joined
from meander.task.shown import as_numbers

CONTENT_LIMIT = 10_000
"""Characters of a row that a dead letter keeps."""


@dataclass(frozen=True)
class DeadLetter:
    """A row that an operator could not take."""

    operator: str
    position: str
    reason: str
    content: str


def evaluate(node: Node, rows: Rows, dead: list[DeadLetter], epoch: int, strict: bool, watched: bool = False) -> Rows:
    """Apply one operator to some rows of its input. An operator on probation has no dead letters,
    and is not tried on fewer rows."""
    try:
        return _apply(node, rows)
    except FlowError as error:
        raise _wrong_return(node, error) from error
    except (BadInput, Corrupted, Retryable):  # a table that cannot be read says nothing about rows
        raise
    except Exception as error:  # a user's function may raise anything
        whole = isinstance(node.op, MapBatches) and not node.op.row_local
        if watched:
            raise BadInput(_message(node, rows, error, epoch, strict=False)) from error
        if strict or whole or rows.frame.height == 0:
            raise BadInput(_message(node, rows, error, epoch, strict)) from error
        return _apply_to_good_rows(node, rows, error, dead)


def _apply(node: Node, rows: Rows) -> Rows:
    op = node.op
    if isinstance(op, Filter):
        return rows.filter(op.mask(rows.frame))
    if isinstance(op, WithColumns | Select):
        return rows.with_frame(op.apply(rows.frame))
    assert isinstance(op, MapBatches), f"operator '{node.name}' is not stateless"
    if rows.units is not None and not op.row_local:
        return joined([Rows(op.apply(part.frame), part.unit, place=part.place, sign=rows.sign) for part in rows.by_unit()], rows.place)
    if rows.units is not None and op.carries:  # as many rows may leave as came, and other ones
        made = op.fn(rows.frame.with_columns(pl.Series(UNIT, rows.units, pl.UInt64)))
        frame = made.drop(UNIT) if op.schema is None else conform(made.drop(UNIT), op.schema)
        return Rows(frame, None, made.get_column(UNIT).to_numpy(), place=rows.place, sign=rows.sign)
    result = op.apply(rows.frame)
    if result.height == rows.frame.height:
        return rows.with_frame(result)
    if rows.units is None:
        return Rows(result, rows.unit, place=rows.place, sign=rows.sign, partition=rows.partition)
    # Rows were dropped or added: only a call per unit tells which unit each row belongs to.
    return joined([Rows(op.apply(part.frame), part.unit, place=part.place, sign=rows.sign) for part in rows.by_unit()], rows.place)


def _apply_to_good_rows(node: Node, rows: Rows, error: Exception, dead: list[DeadLetter]) -> Rows:
    """Bisect: the bad rows to the dead letters, the operator's result over all others."""
    bad: list[int] = []
    pending: list[tuple[int, int, Exception]] = [(0, rows.frame.height, error)]
    while pending:
        begin, end, reason = pending.pop()
        if end - begin == 1:
            bad.append(begin)
            content = content_of(rows.frame, begin)[:CONTENT_LIMIT]
            dead.append(DeadLetter(node.name, rows.position(begin), f"{type(reason).__name__}: {reason}", content))
            continue
        middle = (begin + end) // 2
        for a, b in ((middle, end), (begin, middle)):
            try:
                _apply(node, rows.take(np.arange(a, b)))
            except FlowError as wrong:
                raise _wrong_return(node, wrong) from wrong
            except Exception as half:  # a user's function may raise anything
                pending.append((a, b, half))
    keep = np.ones(rows.frame.height, np.bool_)
    keep[bad] = False
    good = rows.take(np.flatnonzero(keep))
    try:
        return _apply(node, good)
    except FlowError as wrong:
        raise _wrong_return(node, wrong) from wrong
    except Exception as again:  # it fails on the whole, not on any row: it is not row-local
        raise BadInput(
            f"operator '{node.name}' fails on a batch ({type(again).__name__}: {again}) but on none of its rows: "
            "it is not row-local. Declare it with map_batches(..., row_local=False) and make it take every batch."
        ) from again


def _wrong_return(node: Node, error: FlowError) -> FlowError:
    return FlowError(f"{node.op.kind} {node.name!r}: {error}")


def _message(node: Node, rows: Rows, error: Exception, epoch: int, strict: bool) -> str:
    place = rows.place
    if strict and rows.frame.height:
        found: list[DeadLetter] = []
        try:
            _apply_to_good_rows(node, rows, error, found)
        except BadInput:
            found = []
        if found:
            first = min(found, key=lambda d: d.position)
            more = f" (and {len(found) - 1} more rows)" if len(found) > 1 else ""
            return f"operator '{node.name}', epoch {epoch}, row {first.position}: {first.reason}{more}; the row is {first.content}"
    return f"operator '{node.name}', epoch {epoch}, rows of {place}: {type(error).__name__}: {error}"


def content_of(frame: pl.DataFrame, row: int) -> str:
    """A row as a dead letter has it."""
    return json.dumps(values_of(frame, row), default=str)


def values_of(frame: pl.DataFrame, row: int) -> dict[str, Any]:
    """The values of a row; times of years that Python does not have as the numbers that they are."""
    return as_numbers(frame.slice(row, 1)).row(0, named=True)
