"""The options of a modification, typed: the keywords of ``run.replace``, ``insert``, ``remove``,
``modify`` and ``apply``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

import polars as pl

if TYPE_CHECKING:
    from meander.plan.change.modify import StateFunction

Guard = Callable[[dict[str, pl.DataFrame], dict[str, pl.DataFrame]], object]
"""Looks at the output of one epoch's input before and after a change, a frame per sink; something false refuses the change."""


class ForAll(TypedDict, total=False):
    """Options of several changes, or of a whole flow. See ``Run.modify``."""

    request_id: str | None
    author: str
    drop_state: bool | str | Sequence[str]
    upgrade: Mapping[str, StateFunction] | None
    backfill: Mapping[str, Mapping[str, Any]] | None
    guard: Guard | None
    timeout: float | str | None


class ForOne(TypedDict, total=False):
    """Options of a change of one operator: ``upgrade`` and ``backfill`` are that operator's own."""

    request_id: str | None
    author: str
    drop_state: bool | str | Sequence[str]
    upgrade: StateFunction | None
    backfill: Mapping[str, Any] | None
    guard: Guard | None
    timeout: float | str | None
