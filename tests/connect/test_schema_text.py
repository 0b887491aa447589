from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from pyspark.sql import types

from meander.connect.schema_text import as_columns
from meander.errors import FlowError


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("customer string, amount double", {"customer": pl.String(), "amount": pl.Float64()}),
        ("id BIGINT NOT NULL,n int COMMENT 'how many, in all', at timestamp", {"id": pl.Int64(), "n": pl.Int32(), "at": pl.Datetime("us")}),
        ("`order id`: long, `a``b` decimal(10, 2)", {"order id": pl.Int64(), "a`b": pl.Decimal(10, 2)}),
        ("code varchar(3), price decimal\n", {"code": pl.String(), "price": pl.Decimal(10, 0)}),
    ],
)
def test_ddl_text_is_read_as_spark_reads_it(text: str, columns: dict[str, pl.DataType]) -> None:
    assert list(as_columns(text).items()) == list(columns.items())


def test_a_struct_type_of_spark_is_a_schema() -> None:
    struct = types.StructType(
        [
            types.StructField("customer", types.StringType()),
            types.StructField("amount", types.DecimalType(12, 3)),
            types.StructField("at", types.TimestampType(), nullable=False),
        ]
    )
    assert dict(as_columns(struct)) == {"customer": pl.String(), "amount": pl.Decimal(12, 3), "at": pl.Datetime("us")}


def test_a_mapping_passes_through() -> None:
    given = {"amount": "double"}
    assert as_columns(given) is given


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("customer", "'customer' is not understood; write 'column type"),
        ("a string; b double", "is not understood"),
        ("a string, b", "'b' is not understood"),
        ("a array<string>", "'a array<string>' is not understood"),
        ("a money", "column 'a': unknown type 'money'; there are string"),
        ("a string, a double", "column 'a' is in the schema twice"),
        (types.StructType([types.StructField("tags", types.ArrayType(types.StringType()))]), "column 'tags': unknown type 'array<string>'"),
        (7, "schema=7: give {column: type}, text such as"),
    ],
)
def test_a_schema_that_is_not_understood_is_refused_with_what_to_write(schema: Any, message: str) -> None:
    with pytest.raises(FlowError) as caught:
        as_columns(schema)
    assert message in str(caught.value)
