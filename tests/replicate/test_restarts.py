"""When a replica is started again: what is its own fault is tried a few times, what is not as long as it takes."""

from __future__ import annotations

import pytest

from meander.replicate.restarts import Death, Patience, Restarts


@pytest.mark.parametrize("error", ["Busy", "Unavailable"])
def test_what_waiting_helps_against_ends_no_replica_of_a_flow_that_has_run(error: str) -> None:
    """A store that is away while it starts, or a port that the one before it still has, as when a supervisor was killed between the two."""
    record = Restarts(Patience())
    pauses = [record.after(Death(None, by_itself=True, error=error, known=True)) for _ in range(20)]
    assert None not in pauses
    assert pauses[-1] == Patience().longest_pause


@pytest.mark.parametrize("error", ["Busy", "Unavailable", "Retryable", "KeyError"])
def test_a_replica_that_cannot_come_up_where_none_ever_did_is_given_up(error: str) -> None:
    record = Restarts(Patience())
    assert [record.after(Death(None, by_itself=True, error=error)) for _ in range(4)][-1] is None


@pytest.mark.parametrize("error", ["KeyError", "Retryable"])
def test_a_replica_with_errors_of_its_own_is_given_up_although_others_run(error: str) -> None:
    """An epoch that fails whenever it is tried is one, too."""
    record = Restarts(Patience())
    assert [record.after(Death(1.0, by_itself=True, error=error, known=True)) for _ in range(4)][-1] is None
