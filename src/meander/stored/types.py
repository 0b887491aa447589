"""Polars' types as data: names and parameters of our own, since what Polars shows of a type may change with its version."""

from __future__ import annotations

from typing import Any

import polars as pl

_SIMPLE: dict[str, pl.DataType] = {
    name.lower(): getattr(pl, name)()
    for name in (
        "Int8", "Int16", "Int32", "Int64", "Int128", "UInt8", "UInt16", "UInt32", "UInt64", "UInt128", "Float16", "Float32", "Float64",
        "Boolean", "String", "Binary", "Date", "Time", "Null",
    )
    if hasattr(pl, name)
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _SIMPLE.items()}


class NoSuchType(ValueError):
    """A type that has no stored form, or a stored form that stands for no type here."""


def write_type(dtype: pl.DataType) -> Any:
    """
    >>> write_type(pl.Int64()), write_type(pl.Datetime("us", "UTC")), write_type(pl.List(pl.Struct({"n": pl.Decimal(10, 2)})))
    ('int64', {'datetime': 'us', 'zone': 'UTC'}, {'list': {'struct': [['n', {'decimal': [10, 2]}]]}})
    """
    if isinstance(dtype, pl.Datetime):
        return {"datetime": dtype.time_unit, "zone": dtype.time_zone}
    if isinstance(dtype, pl.Duration):
        return {"duration": dtype.time_unit}
    if isinstance(dtype, pl.Decimal):
        return {"decimal": [dtype.precision, dtype.scale]}
    if isinstance(dtype, pl.List):
        return {"list": write_type(_instance(dtype.inner))}
    if isinstance(dtype, pl.Array):
        return {"array": write_type(_instance(dtype.inner)), "size": dtype.size}
    if isinstance(dtype, pl.Struct):
        return {"struct": [[field.name, write_type(_instance(field.dtype))] for field in dtype.fields]}
    if isinstance(dtype, pl.Enum):
        return {"enum": dtype.categories.to_list()}
    if type(dtype) is pl.Categorical and dtype == pl.Categorical():
        return "categorical"
    if dtype not in _NAMES:
        raise NoSuchType(f"{dtype!r} cannot be stored")
    return _NAMES[dtype]


def read_type(data: Any) -> pl.DataType:
    """
    >>> read_type({"array": "float32", "size": 3})
    Array(Float32, shape=(3,))
    """
    if isinstance(data, str) and data in _SIMPLE:
        return _SIMPLE[data]
    match data:
        case "categorical":
            return pl.Categorical()
        case {"datetime": unit, "zone": zone, **rest} if not rest:
            return pl.Datetime(unit, zone)
        case {"duration": unit, **rest} if not rest:
            return pl.Duration(unit)
        case {"decimal": [precision, scale], **rest} if not rest:
            return pl.Decimal(precision, scale)
        case {"list": inner, **rest} if not rest:
            return pl.List(read_type(inner))
        case {"array": inner, "size": size, **rest} if not rest:
            # Polars shows an array of arrays as one with several sizes; each of them is one array here.
            return pl.Array(read_type(inner), size)
        case {"struct": fields, **rest} if not rest:
            return pl.Struct([pl.Field(name, read_type(inner)) for name, inner in fields])
        case {"enum": categories, **rest} if not rest:
            return pl.Enum(categories)
    raise NoSuchType(f"the type {data!r} is not known here")


def write_schema(schema: pl.Schema) -> list[Any]:
    return [[name, write_type(dtype)] for name, dtype in schema.items()]


def read_schema(data: Any) -> pl.Schema:
    return pl.Schema([(name, read_type(dtype)) for name, dtype in data])


def _instance(dtype: Any) -> pl.DataType:
    """Inside a list or a struct Polars allows a type's class (``pl.Int64``) where it means the type."""
    return pl.Schema({"x": dtype})["x"]
