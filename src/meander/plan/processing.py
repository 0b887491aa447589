"""A processor in a plan: Python code with state per key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import polars as pl

from meander.errors import FlowError
from meander.familiar.values import named
from meander.plan.code import NO_CODE, Code, read_code
from meander.plan.joins import Matching
from meander.plan.operators import Operator, expect_inputs
from meander.plan.schemas import KEY_TYPES, did_you_mean, is_key_type, missing_column
from meander.plan.windows import show_duration
from meander.processor import Declaration, Processor, Variable, declaration_of
from meander.processor.declare import HOOKS
from meander.stored import stored

if TYPE_CHECKING:
    from meander.plan.graph import Node


@stored("process", called={"written": "code"})
@dataclass(frozen=True, eq=False)
class Process:
    """Calls a processor once per key and epoch, or once for all keys of a slot; of two connected streams, once for each of them."""

    kind: ClassVar[str] = "process"
    stateful: ClassVar[bool] = True
    keys: tuple[str, ...]
    processor: Processor
    other_keys: tuple[str, ...] | None = None
    """The key columns of the second stream, where two are connected. The key that leaves has the first one's names."""
    written: Code | None = None
    """The processor's code as it was read where it was written; None there."""

    @cached_property
    def declared(self) -> Declaration:
        return declaration_of(self.processor)

    def output_schema(self, inputs: list[pl.Schema], name: str) -> pl.Schema:
        schema = expect_inputs(self.kind, name, inputs, 1 if self.other_keys is None else 2)[0]
        self._check_hooks(name)
        if self.other_keys is not None:
            check_connected(self.keys, self.other_keys, schema, inputs[1], f"process {name!r}")
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
        for side, columns in self.declared.sides.items():
            if met := [column for column in columns if column in self.keys]:
                raise FlowError(
                    f"process {name!r}: side output {side!r} names {met[0]!r}, which is a key; keys come in front by themselves"
                )
        return pl.Schema(output)

    def _check_hooks(self, name: str) -> None:
        """The processor has a method for the rows of each input, and for no others."""
        declared, (first, second) = self.declared, HOOKS[self.declared.form]
        if self.other_keys is None and declared.connects:
            raise FlowError(
                f"process {name!r}: {declared.name} has {second}, for the rows of a second stream, and there is one stream; write "
                f"a.key_by('k').connect(b.key_by('k')).process({declared.name}), or leave {second} out"
            )
        if self.other_keys is not None and not declared.connects:
            args = "key, rows, state, ctx" if declared.form == "events" else "rows, state, ctx"
            raise FlowError(
                f"process {name!r}: it has two streams, and {declared.name} has {first} alone, for the rows of the left; those of the "
                f"other need a method: write {second}(self, {args})"
            )

    def describe(self) -> str:
        variables = ", ".join(f"{name} {_show(variable)}" for name, variable in self.declared.variables.items())
        sides = f"; side outputs {', '.join(self.declared.sides)}" if self.declared.sides else ""
        by = Matching(self.keys, self.other_keys or self.keys).describe()
        return f"by {by}: {self.declared.name}({variables}){sides}"

    def canonical(self) -> str:
        declared = self.declared
        sides = f" {[(side, list(columns.items())) for side, columns in declared.sides.items()]}" if declared.sides else ""
        other = "" if self.other_keys is None else f" connected by {list(self.other_keys)}"
        own = f"{declared.form} {declared.has_timers} {declared.ttl_clock} {list(declared.variables.items())}"
        return f"{list(self.keys)} {own}{sides}{other}"

    def code(self) -> Code:
        return self.written or read_code(self.processor)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "written": self.code()}


def check_connected(keys: tuple[str, ...], others: tuple[str, ...], left: pl.Schema, right: pl.Schema, what: str) -> None:
    """FlowError where these keys of two streams cannot be one key."""
    if len(keys) != len(others):
        raise FlowError(
            f"{what}: the left is keyed by {', '.join(keys)}, the right by {', '.join(others)}: the key of both must have as many columns"
        )
    Matching(keys, others).check(left, right, what)


@stored("side")
@dataclass(frozen=True, eq=False)
class Side:
    """A side output of the processor that it stands behind. It reads nothing else of that."""

    kind: ClassVar[str] = "side"
    stateful: ClassVar[bool] = False
    output: str

    def output_schema(self, inputs: list[pl.Schema], name: str) -> pl.Schema:
        raise FlowError(f"side {name!r}: its columns are those that a processor says")  # ``columns_of`` knows which one

    def columns(self, of: str, op: Operator, schema: pl.Schema, name: str) -> pl.Schema:
        """Its columns, given the processor."""
        if not isinstance(op, Process):
            raise FlowError(
                f"side {name!r}: it takes the side output {self.output!r} of {of!r}, which is a {op.kind}; only processors have any"
            )
        sides = op.declared.sides
        if self.output not in sides:
            there = ", ".join(sides) or "none"
            raise FlowError(
                f"side {name!r}: processor {op.declared.name} of {of!r} has no side output {self.output!r}; there are {there}"
                f"{did_you_mean(self.output, list(sides))}"
            )
        return pl.Schema({**{key: schema[key] for key in op.keys}, **sides[self.output]})

    def describe(self) -> str:
        return f"side output {self.output}"

    def canonical(self) -> str:
        return self.output

    def code(self) -> Code:
        return NO_CODE


def columns_of(node: Node, nodes: Mapping[str, Node], schemas: Mapping[str, pl.Schema]) -> pl.Schema:
    """The columns that leave an operator; FlowError if it cannot run on its inputs."""
    if isinstance(node.op, Side):
        (of,) = node.inputs
        return node.op.columns(of, nodes[of].op, schemas[of], node.name)
    return node.op.output_schema([schemas[name] for name in node.inputs], node.name)


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
        raise FlowError(f"process: {named(given)} is no processor; write a subclass of md.Processor")
    return given
