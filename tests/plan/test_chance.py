"""Code that goes by chance or by the clock is told of, and refused where somebody relies on the opposite."""

from __future__ import annotations

import datetime
import functools
import random
import time
from random import random as chance
from secrets import token_hex
from typing import Any
from uuid import uuid4

import numpy as np
import polars as pl
import pytest
from tests.plan.test_modify import plan

import meander as md
from meander.errors import FlowError
from meander.plan.change.modify import Replace, StateRules, modify
from meander.plan.determinism import chance_in


def imports_within(frame: pl.DataFrame) -> pl.DataFrame:
    import random

    return frame.with_columns(x=random.randint(0, 9))


@pytest.mark.parametrize(
    ("function", "calls"),
    [
        (lambda frame: frame.filter(random.random() < 0.5), ("random.random",)),
        (functools.partial(lambda frame, n: frame.with_columns(x=uuid4().hex * n), n=1), ("uuid.uuid4",)),
        (lambda frame: frame.with_columns(at=datetime.datetime.now()), ("datetime.now",)),
        (lambda frame: frame.with_columns(at=[time.time() for _ in range(frame.height)]), ("time.time",)),
        (lambda frame: frame.with_columns(x=np.random.rand(frame.height)), ("numpy.random.rand",)),
        (lambda frame: frame.filter(chance() < 0.5), ("random.random",)),
        (lambda frame: frame.with_columns(x=[token_hex(8) for _ in range(frame.height)]), ("secrets.token_hex",)),
        (imports_within, ("random.randint",)),
        (lambda frame: frame.with_columns(x=random.Random(7).random()), ()),
        (lambda frame: frame.with_columns(x=np.random.default_rng(7).random()), ()),
        (lambda frame: frame.filter(pl.col("choice") > pl.col("time")), ()),
    ],
)
def test_what_goes_by_chance_is_told(function: Any, calls: tuple[str, ...]) -> None:
    assert chance_in(function) == calls
    before = plan()
    _, effects = modify(before, [Replace("clean", md.map_batches(function, schema=dict(before.schema("clean"))))], StateRules())
    assert effects.chance == ({"clean": calls} if calls else {})
    assert ("beware" in str(effects)) == bool(calls)
    sure = md.map_batches(function, schema=dict(before.schema("clean")), deterministic=True)
    if calls:
        with pytest.raises(FlowError, match="which gives something else each time"):
            modify(before, [Replace("clean", sure)], StateRules())
    else:
        modify(before, [Replace("clean", sure)], StateRules())
