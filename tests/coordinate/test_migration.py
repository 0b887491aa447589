"""Strategies: one list, one row for each, and what a rescaling makes of it."""

from __future__ import annotations

import pytest

from meander.coordinate.migration import BRINGING, plan_bringing, plan_migration
from meander.errors import ConfigError
from meander.settings import STRATEGIES, Strategy

BEFORE, AFTER, LOAD = [0, 0, 0, 0], [0, 0, 1, 1], [1.0, 1.0, 9.0, 1.0]


def test_every_strategy_has_one_row_and_no_row_is_of_another() -> None:
    assert tuple(BRINGING) == STRATEGIES


@pytest.mark.parametrize("strategy", ["eager", "lazy", "prefetch"])
def test_most_strategies_are_one_switch_with_caches_filled_as_their_row_says(strategy: Strategy) -> None:
    (step,) = plan_migration(BEFORE, AFTER, strategy, LOAD)
    assert (step.table, step.how) == (AFTER, BRINGING[strategy])


def test_hybrid_switches_hot_key_groups_at_once_and_the_others_when_caches_are_filled() -> None:
    hot, rest = plan_migration(BEFORE, AFTER, "hybrid", LOAD)
    assert (hot.table, hot.how.before, hot.how.wait_after) == ([0, 0, 1, 0], "nothing", False)
    assert (rest.table, rest.how.before, rest.how.wait_after) == (AFTER, "everything", False)


def test_hybrid_is_one_switch_where_its_first_table_would_have_an_empty_slot() -> None:
    (step,) = plan_migration([0, 0, 0, 0], [0, 1, 2, 2], "hybrid", [1.0, 1.0, 9.0, 1.0])
    assert (step.table, step.how) == ([0, 1, 2, 2], BRINGING["lazy"])
    (step,) = plan_migration(AFTER, BEFORE, "hybrid", LOAD)
    assert step.how == BRINGING["prefetch"], "what shrinks is switched as a whole, with caches filled before"


def test_a_strategy_that_is_not_there_is_answered_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match="strategy 'lasy': there are eager, lazy, prefetch, hybrid"):
        plan_bringing("lasy")  # type: ignore[arg-type]
