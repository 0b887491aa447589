"""Values as data and back: every form that a parameter or a user's attribute can have."""

from __future__ import annotations

import enum
import json
import threading
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from types import MappingProxyType
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meander as md
from meander.errors import ConfigError
from meander.plan.code import code_of
from meander.plan.windows import Window
from meander.stored.kinds import stored
from meander.stored.types import NoSuchType, read_type, write_type
from meander.stored.values import Reader, Writer


def there_and_back(value: Any, run_code: bool = False) -> Any:
    return Reader("a value", run_code).read(json.loads(json.dumps(Writer().write(value), allow_nan=False)))


plain = st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False) | st.binary() | st.dates() | st.datetimes()
plain |= st.times() | st.timedeltas() | st.decimals(allow_nan=False)
nested = st.recursive(
    plain, lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(plain, inner) | st.frozensets(plain), max_leaves=12
)


@given(nested)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    found = there_and_back(value)
    assert found == value
    assert repr(found) == repr(value) or isinstance(value, set | frozenset | dict | list | tuple)


@pytest.mark.parametrize(
    "value",
    [
        float("inf"), float("-inf"), 1 << 80, {1, 2}, {"a": [1, (2, "x")]}, date(2026, 3, 1), time(1, 2, 3),
        timedelta(days=-1, microseconds=1),
        datetime(2026, 3, 1, tzinfo=ZoneInfo("Europe/Berlin")), Decimal("1.50"), b"\x00\xff", "$kind", {"kind": 1}, {"$list": 2},
        pl.Schema({"a": pl.Int64(), "b": pl.List(pl.String())}), pl.Datetime("ms", "UTC"), Window(3, 1),
    ],
    ids=repr,
)  # fmt: skip
def test_values_that_json_lacks_have_a_form(value: Any) -> None:
    found = there_and_back(value)
    assert (found, type(found)) == (value, type(value))


def test_a_float_that_is_no_number_stays_one() -> None:
    assert repr(there_and_back((float("nan"), -0.0, 1.0))) == "(nan, -0.0, 1.0)"


def test_a_mapping_that_cannot_be_changed_comes_back_as_a_dict() -> None:
    assert there_and_back(MappingProxyType({"a": 1})) == {"a": 1}


def test_a_frame_comes_back_with_its_types() -> None:
    frame = pl.DataFrame({"a": [1, None], "c": ["x", "y"]}, schema={"a": pl.Int8, "c": pl.Categorical})
    assert there_and_back(frame).equals(frame)


TYPES = [
    pl.Int8(), pl.UInt64(), pl.Int128(), pl.Float32(), pl.Boolean(), pl.String(), pl.Binary(), pl.Date(), pl.Time(), pl.Null(),
    pl.Datetime("ns"), pl.Datetime("us", "Asia/Tokyo"), pl.Duration("ms"), pl.Decimal(38, 9), pl.Categorical(), pl.Enum(["b", "a"]),
    pl.List(pl.List(pl.Int64())), pl.Array(pl.Int8(), 3), pl.Array(pl.Array(pl.Int8(), 2), 3),
    pl.Struct({"a b": pl.Int64(), "c": pl.List(pl.Date)}),
]  # fmt: skip


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_every_type_has_a_form_of_our_own(dtype: pl.DataType) -> None:
    written = json.loads(json.dumps(write_type(dtype)))
    assert read_type(written) == dtype
    assert str(read_type(written)) == str(dtype)


@pytest.mark.parametrize("data", ["int65", {"list": "int64", "more": 1}, {"tree": "int64"}, 3, None])
def test_a_type_that_is_not_known_is_refused(data: Any) -> None:
    with pytest.raises(NoSuchType):
        read_type(data)


EXPRESSIONS = [
    (pl.col("a"), "$column"), (pl.col("a b").alias("c"), "$column"), (pl.col("^a.*$"), "$expression"), (pl.sql_expr("a + 1"), "$sql"),
    (pl.sql_expr("a + 1").alias("z"), "$sql"), (pl.col("a").abs() + 1, "$expression"), (pl.lit(float("nan")), "$expression"),
    (pl.all(), "$expression"), (pl.lit(pl.Series([1, 2])), "$expression"),
]  # fmt: skip


@pytest.mark.parametrize(("expr", "tag"), EXPRESSIONS, ids=lambda given: str(given)[:20])
def test_an_expression_has_the_plainest_form_that_says_the_same(expr: pl.Expr, tag: str) -> None:
    written = json.loads(json.dumps(Writer().write(expr, ("a + 1",))))
    assert tag in written
    assert Reader("it", run_code=True).read(written).meta.serialize() == expr.meta.serialize()


def test_text_that_says_something_else_is_not_taken_for_the_expression() -> None:
    written = Writer().write(pl.col("a") > 1, ("a > 2", "no SQL at all (", None))
    assert "$expression" in written


# -- objects of users ---------------------------------------------------------------------------------------------------


class Settings:
    def __init__(self, **given: Any) -> None:
        self.__dict__.update(given)


@dataclass(frozen=True)
class Frozen:
    size: int
    window: Window


class Copied:
    """Says itself how it is copied."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return (Copied, ())


def twice(value: int) -> int:
    return 2 * value


def test_an_object_of_a_users_class_is_its_class_and_its_attributes() -> None:
    written = Writer().write(Settings(a=1, b=[2.5, None], window=md.tumbling("1s")))
    assert written["$own"]["attributes"]["a"] == 1
    assert written["$own"]["attributes"]["window"]["kind"] == "time_window"
    found = Reader("it", run_code=True).read(written)
    assert (found.a, found.b, found.window) == (1, [2.5, None], md.tumbling("1s"))
    assert code_of(found) == code_of(Settings(a=1, b=[2.5, None], window=md.tumbling("1s")))
    with_function = there_and_back(Settings(window=md.tumbling("1s"), f=twice), run_code=True)
    assert (with_function.window, with_function.f(4)) == (md.tumbling("1s"), 8)


class Mode(enum.Enum):
    FAST = 1
    SLOW = 2


class Rule:
    limit = 3


class Knows:
    """An object that compares its attributes with classes that its methods know by name."""

    def __init__(self) -> None:
        self.mode, self.rules, self.handlers = Mode.FAST, [Rule()], {"a": self.whole}

    def whole(self) -> Knows:
        return self

    def is_fast(self) -> bool:
        return self.mode is Mode.FAST and {Mode.FAST: True}.get(self.mode, False)

    def has_rule(self) -> bool:
        return isinstance(self.rules[0], Rule)


def test_classes_that_an_object_knows_are_those_of_its_attributes() -> None:
    found = there_and_back(Knows(), run_code=True)
    assert found.is_fast()
    assert found.has_rule()
    assert found.handlers["a"]() is found


class Rates(dict[str, float]):
    pass


class Word(str):
    pass


class Count(int):
    pass


class Numbers(list[int]):
    pass


@pytest.mark.parametrize("value", [Rates(a=0.5), Word("a"), Count(3), Numbers([1, 2])], ids=lambda value: type(value).__name__)
def test_an_object_that_is_more_than_its_attributes_keeps_its_content(value: Any) -> None:
    found = there_and_back(value, run_code=True)
    assert found == value
    assert type(found).__name__ == type(value).__name__


def test_a_frozen_dataclass_of_a_users_comes_back() -> None:
    found = there_and_back(Frozen(3, Window(3, 1)), run_code=True)
    assert (found.size, found.window) == (3, Window(3, 1))


def test_an_object_that_shares_or_holds_itself_comes_back_whole() -> None:
    shared: list[int] = [1]
    found = there_and_back(Settings(one=shared, other=shared), run_code=True)
    assert found.one is found.other
    ring = Settings()
    ring.inner = Settings(outer=ring)
    assert there_and_back(ring, run_code=True).inner.outer.inner is not None


def test_a_class_that_says_how_it_is_copied_is_asked() -> None:
    assert isinstance(there_and_back(Copied(), run_code=True).lock, type(threading.Lock()))


def test_our_objects_and_names_in_a_function_are_described_and_named() -> None:
    window = md.tumbling("10s")
    found = there_and_back(lambda: (window, md.Processor, md.sum("a").alias("b")), run_code=True)()
    assert found[0] == window
    assert found[1] is md.Processor
    assert found[2].name == "b"


def test_code_is_not_read_where_it_must_not_run() -> None:
    for value in (twice, Settings(a=1), Settings):
        with pytest.raises(ConfigError, match="a value: it has code of the flow's own"):
            there_and_back(value)


def test_a_kind_is_given_once_and_has_no_parameter_of_that_name() -> None:
    with pytest.raises(ValueError, match="kind 'time_window' is that of Window"):
        stored("time_window")(Frozen)
    with pytest.raises(ValueError, match="cannot be called 'kind'"):
        stored("example", called={"size": "kind"})(Frozen)


def test_a_datetime_with_an_offset_comes_back() -> None:
    value = datetime(2026, 1, 1, tzinfo=UTC)
    assert there_and_back(value, run_code=True) == value
