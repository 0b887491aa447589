"""Changes as plain data (JSON), without code: for users who may change a flow but may not run code
in it. Pure.

A change is ``{"change": "replace", "name": "positive", "operator": {"filter": "amount > 10"}}``; ``insert`` has ``after`` and may have
``before``, ``remove`` has no operator. Operators are

- ``{"filter": "amount > 10"}``, ``{"select": ["customer", "amount"]}``, ``{"with_columns": {"cents": "amount * 100"}}``: SQL text
- ``{"aggregate": {"n": "count()", "total": "sum(amount)"}}``, with ``by``, ``emit`` and ``lateness`` beside it where they are wanted
- ``{"watermark": "ts"}``, with ``grace``, ``idle`` and ``max_ahead`` beside it
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meander.aggregates import Agg, kinds
from meander.errors import FlowError
from meander.plan.change.modify import Change, Given, Insert, Remove, Replace
from meander.plan.expressions import parse, parse_all, sql_of, text_of
from meander.plan.operators import Filter, Select, WithColumns
from meander.plan.schemas import did_you_mean
from meander.plan.unplaced import aggregate, watermark

_CALL = re.compile(r"\s*(\w+)\s*\(\s*(.*?)\s*\)\s*")
_AGGREGATES: dict[str, Callable[..., Agg]] = {name: getattr(kinds, name) for name in kinds.__all__}
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_NUMBERS = {"float": float, "int": int}
_BESIDE = {"aggregate": {"by", "emit", "lateness"}, "watermark": {"grace", "idle", "max_ahead"}}


def changes_from_json(data: Sequence[Mapping[str, Any]]) -> tuple[Change, ...]:
    """Changes from plain data; FlowError that says what is wrong with which.

    >>> changes_from_json([{"change": "replace", "name": "positive", "operator": {"filter": "amount > 10"}}])[0].words()
    "replace 'positive' by filter"
    """
    return tuple(_change(number, one) for number, one in enumerate(data, 1))


def _change(number: int, data: Mapping[str, Any]) -> Change:
    what, name = data.get("change"), str(data.get("name") or "")
    where = f"change {number}"
    wanted = {"replace": {"operator", "resume"}, "insert": {"operator", "after", "before"}, "remove": set()}
    if what not in wanted:
        raise FlowError(f"{where}: 'change' is {what!r}; there are {', '.join(wanted)}")
    if not name:
        raise FlowError(f"{where}: 'name' is missing: say which operator")
    given = {key for key, value in data.items() if value is not None} - {"change", "name"}
    if unknown := sorted(given - wanted[what]):
        raise FlowError(f"{where}: {what} has no {unknown[0]!r}; it can have {', '.join(sorted(wanted[what])) or 'a name alone'}")
    if what == "remove":
        return Remove(name)
    if not isinstance(data.get("operator"), Mapping):
        raise FlowError(f'{where}: {what} {name!r} needs an operator, as in {{"filter": "amount > 10"}}')
    op = operator_from_json(data["operator"])
    if what == "replace":
        return Replace(name, op, data.get("resume"))
    if not data.get("after"):
        raise FlowError(f"{where}: insert {name!r} needs 'after': the operator that it stands behind")
    return Insert(name, op, data["after"], data.get("before"))


def operator_from_json(data: Mapping[str, Any]) -> Given:
    """
    >>> operator_from_json({"select": ["a", "b + 1 AS c"]}).describe()
    'a, b + 1 AS c'
    """
    kinds = [kind for kind in ("filter", "select", "with_columns", "aggregate", "watermark") if kind in data]
    if len(kinds) != 1:
        there = f"it has {' and '.join(kinds)}" if kinds else f"it has {', '.join(map(repr, data)) or 'nothing'}"
        raise FlowError(
            f"an operator is one of filter, select, with_columns, aggregate and watermark, and {there}; other code travels as code"
        )
    (kind,) = kinds
    if unknown := sorted(set(data) - {kind} - _BESIDE.get(kind, set())):
        raise FlowError(f"{kind} has no {unknown[0]!r}{did_you_mean(unknown[0], _BESIDE.get(kind, set()))}")
    body = data[kind]
    if kind == "filter":
        return Filter(parse(_text(kind, body)), text_of((body,), {}))
    if kind == "select":
        exprs = tuple(_text(kind, one) for one in _several(kind, body))
        return Select(parse_all(exprs, {}), text_of(exprs, {}), sql_of(exprs, {}))
    if kind == "with_columns":
        named = {str(name): _text(kind, one) for name, one in body.items()} if isinstance(body, Mapping) else {}
        exprs = () if named else tuple(_text(kind, one) for one in _several(kind, body))
        return WithColumns(parse_all(exprs, named), text_of(exprs, named), sql_of(exprs, named))
    beside = {name: value for name, value in data.items() if name != kind and value is not None}
    if kind == "watermark":
        return watermark(_text(kind, body), **beside)
    if not isinstance(body, Mapping) or not body:
        raise FlowError('aggregate: name every column that leaves it, as in {"n": "count()", "total": "sum(amount)"}')
    return aggregate(*(agg_from_text(_text(kind, text)).alias(name) for name, text in body.items()), **beside)


def agg_from_text(text: str) -> Agg:
    """
    >>> agg_from_text("sum(amount)").alias("total").describe(), agg_from_text("top_k(price, 3)").alias("best").describe()
    ('sum(amount) as total', 'top_k(price, k=3) as best')
    """
    found = _CALL.fullmatch(text)
    name = found.group(1) if found else text
    if found is None or name not in _AGGREGATES:
        raise FlowError(
            f"aggregate {text!r}: write it like sum(amount); there are {', '.join(_AGGREGATES)}{did_you_mean(name, _AGGREGATES)}"
        )
    arguments: list[Any] = _arguments(found.group(2))
    number = _number_of(_AGGREGATES[name])
    if number is not None and len(arguments) == 2:
        try:
            arguments[1] = number(arguments[1])
        except ValueError as error:
            raise FlowError(f"aggregate {text!r}: {arguments[1]!r} is not a number") from error
    wanted = 1 if number is None else 2
    if len(arguments) != wanted and not (name == "count" and not arguments):
        raise FlowError(f"aggregate {text!r}: {name} takes {wanted} argument{'' if wanted == 1 else 's'}, and has {len(arguments)}")
    return _AGGREGATES[name](*arguments)


def _number_of(function: Callable[..., Agg]) -> Callable[[str], float] | None:
    """The type of the number that an aggregate needs beside its column; None where it needs none.

    >>> _number_of(kinds.quantile), _number_of(kinds.count_distinct)
    (<class 'float'>, None)
    """
    behind = list(inspect.signature(function).parameters.values())[1:]
    return next((_NUMBERS[str(one.annotation)] for one in behind if one.default is one.empty), None)


def _arguments(text: str) -> list[str]:
    """Split text at the commas outside of brackets and quotes; a quoted name loses its quotes.

    >>> _arguments("coalesce(price, 0) * 2, 3"), _arguments("'unit price'"), _arguments("")
    (['coalesce(price, 0) * 2', '3'], ['unit price'], [])
    """
    found, depth, quote = [""], 0, ""
    for sign in text:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        else:
            depth += (sign == "(") - (sign == ")")
            if sign == "," and depth == 0:
                found.append("")
                continue
        found[-1] += sign
    pieces = [one.strip() for one in found if one.strip()]
    return [one[1:-1] if _QUOTED.fullmatch(one) else one for one in pieces]


def _text(kind: str, given: Any) -> str:
    if not isinstance(given, str) or not given.strip():
        raise FlowError(f"{kind}: {given!r} is not SQL text")
    return given


def _several(kind: str, given: Any) -> Sequence[Any]:
    found = [given] if isinstance(given, str) else given
    if not isinstance(found, Sequence) or not found:
        raise FlowError(f"{kind}: give expressions, as a list of SQL texts")
    return found
