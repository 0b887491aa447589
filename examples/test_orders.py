"""Tests of the flow in orders.py, in process: no Spark is started.

Run it (about three seconds):

    python -m pytest examples/test_orders.py

Expect three tests that pass. The flow is the one of the file; its folders are replaced by rows and by a sink in memory.
"""

from pathlib import Path

import pytest
from examples.orders import FIRST, SECOND, build

import meander as md
from meander import testing

NOON = "2024-05-01T12:00:00"


@pytest.fixture
def flow(tmp_path: Path) -> md.Flow:
    (tmp_path / "in").mkdir()  # md.files looks for it when the flow is written
    return build(tmp_path)


def test_totals_are_per_customer_and_grow(flow: md.Flow, tmp_path: Path) -> None:
    orders = [[(customer, amount, NOON) for customer, amount in wave] for wave in (FIRST, SECOND)]
    out = md.memory(table=True)
    with testing.run(flow, tmp_path / "state", sources={"orders": orders}, sinks={"out": out}) as run:
        run.step()
        assert out.rows() == [("ada", 2, 21.5, 0), ("bob", 1, 5.0, 0), ("cleo", 1, 300.0, 1)]
        run.restart()
        run.step()
        assert out.rows() == [("ada", 2, 21.5, 0), ("bob", 1, 5.0, 0), ("cleo", 2, 312.0, 1), ("dora", 1, 7.25, 0)]
        assert run.state("totals").rows() == out.rows()


def test_refunds_are_left_out(flow: md.Flow, tmp_path: Path) -> None:
    out = md.memory()
    orders = [[{"customer": "ada", "amount": -1.0}, {"customer": "ada", "amount": 0.0}]]
    with testing.run(flow, tmp_path / "state", sources={"orders": orders}, sinks={"out": out}) as run:
        run.run()
        assert out.rows() == []
        assert run.counts["rows_in"] == 2


def test_it_does_not_matter_how_orders_come(flow: md.Flow, tmp_path: Path) -> None:
    orders = [(customer, amount, NOON) for customer, amount in FIRST + SECOND]
    assert testing.check(flow, tmp_path / "cuts", {"orders": orders})["out"].height == 4
