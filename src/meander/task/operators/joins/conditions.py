"""Conditions of joins: selects the pairs for which a condition holds, and those on which it
fails."""

from __future__ import annotations

import numpy as np
import polars as pl

from meander.errors import BadInput
from meander.plan.operators import Filter
from meander.task.evaluate import CONTENT_LIMIT, DeadLetter, content_of, values_of
from meander.task.operators.contract import Mask, Stateful
from meander.task.operators.workspace import Workspace

Failure = tuple[int, pl.exceptions.PolarsError]
"""A pair, and the error of the condition on it."""


def holds(where: Filter, pairs: pl.DataFrame) -> tuple[Mask, list[Failure]]:
    """For which pairs the condition holds, and on which it fails, in their order: these are found by halves."""
    found = np.zeros(pairs.height, np.bool_)
    failures: list[Failure] = []
    pending = [(0, pairs.height)] if pairs.height else []
    while pending:
        begin, end = pending.pop()
        try:
            found[begin:end] = where.mask(pairs[begin:end]).to_numpy()
        except pl.exceptions.PolarsError as error:
            if end - begin > 1:
                middle = (begin + end) // 2
                pending += [(middle, end), (begin, middle)]
            else:
                failures.append((begin, error))
    return found, failures


def refuse(workspace: Workspace, join: Stateful, where: Filter, pairs: pl.DataFrame, failure: Failure) -> None:
    """A pair on which the condition fails is a dead letter, and no pair."""
    row, error = failure
    pair = values_of(pairs, row)
    key = tuple(pair[column] for column in join.keys) if len(join.keys) > 1 else pair[join.keys[0]]
    position, reason = f"{join.name} key {key!r}", f"where {where.describe()}: {type(error).__name__}: {error}"
    if workspace.strict:
        raise BadInput(f"operator '{join.name}', epoch {workspace.epoch}, a pair of key {key!r}: {reason}") from error
    workspace.dead.append(DeadLetter(join.name, position, reason, content_of(pairs, row)[:CONTENT_LIMIT]))
