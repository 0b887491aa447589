"""A processor in a plan: Python code with state per key."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import polars as pl

from meander.errors import FlowError
from meander.plan.code import code_of
from meander.plan.operators import expect_inputs
from meander.plan.schemas import KEY_TYPES, is_key_type, missing_column
from meander.plan.windows import show_duration
from meander.processor import Declaration, Processor, Variable, code_parts, declaration_of


@dataclass(frozen=True, eq=False)
class Process:
    """Calls a processor once per key and epoch, or once for all keys of a slot."""

    kind: ClassVar[str] = "process"
    stateful: ClassVar[bool] = True
    keys: tuple[str, ...]
    processor: Processor

    @cached_property
    def declared(self) -> Declaration:
        return declaration_of(self.processor)

    def output_schema(self, inputs: list[pl.Schema], name: str) -> pl.Schema:
        (schema,) = expect_inputs(self.kind, name, inputs, 1)
        output: dict[str, pl.DataType] = {}
        for key in self.keys:
            if key not in schema:
                raise FlowError(f"process {name!r}: key_by: {missing_column(key, schema)}")
            if not is_key_type(schema[key]):
                raise FlowError(f"process {name!r}: key column {key!r} is {schema[key]}; keys can be {KEY_TYPES}: cast it first")
            if key in output:
                raise FlowError(f"process {name!r}: key column {key!r} is given twice")
            output[key] = schema[key]
        for column in self.declared.variables:
            if column in output:
                raise FlowError(f"process {name!r}: its variable {column!r} has the name of a key; give it another")
        for column, dtype in self.declared.output.items():
            if column in output:
                raise FlowError(f"process {name!r}: output names {column!r}, which is a key; keys come in front by themselves")
            output[column] = dtype
        return pl.Schema(output)

    def describe(self) -> str:
        variables = ", ".join(f"{name} {_show(variable)}" for name, variable in self.declared.variables.items())
        return f"by {', '.join(self.keys)}: {self.declared.name}({variables})"

    def canonical(self) -> str:
        declared = self.declared
        return f"{list(self.keys)} {declared.form} {declared.has_timers} {declared.ttl_clock} {list(declared.variables.items())}"

    def code(self) -> str:
        return code_of(code_parts(self.processor))


def _show(variable: Variable) -> str:
    types = " to ".join(map(str, variable.types))
    kind = types if variable.kind == "value" else f"{variable.kind} of {types}"
    return kind if variable.ttl is None else f"{kind} for {show_duration(variable.ttl)}"


def as_processor(given: object) -> Processor:
    """A processor, of a class or an object of one."""
    if isinstance(given, type) and issubclass(given, Processor):
        try:
            given = given()
        except TypeError as error:
            raise FlowError(f"process: {given!r} cannot be made without arguments ({error}); give an object of it") from error
    if not isinstance(given, Processor):
        raise FlowError(f"process: {given!r} is no processor; write a subclass of md.Processor")
    return given
