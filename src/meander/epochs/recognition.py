"""Whether a flow that is started is one that its store knows, though its digest says otherwise.

There are two reasons for that. A person says that changed code does the same (``same_code``), once:
the store notes it for each operator. And another version of Polars writes an expression otherwise.
Both are looked at only at a start, and only for a flow whose digest the store does not know.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from meander.epochs.stored_plans import KNOWN, PLANS, find_packed, is_known, read_packed
from meander.errors import ConfigError
from meander.plan.change.diff import parts_that_differ
from meander.plan.code import Code
from meander.plan.graph import Plan
from meander.plan.schemas import did_you_mean
from meander.state.formats import RECORD
from meander.state.manifest import Json, Manifest
from meander.state.reading import plan_record_name
from meander.state.stores.contract import Store

_LOG = logging.getLogger("meander")


def recognise(store: Store, manifest: Manifest, given: Plan, same_code: bool | Sequence[str] = False, applied: bool = False) -> Plan:
    """The flow that is started, under the digest by which the store knows it, where it knows it.

    ``same_code`` names operators whose changed code does the same; True: all of them. With
    ``applied`` the rest of the flow may be another one: what is said of code is noted anyway.
    """
    named = _named(given, same_code)
    stored = manifest.plan
    if not stored or given.digest() == stored["digest"] or is_known(store, given.digest()):
        return given
    nearest = given
    for digest, record in _candidates(store, stored):
        recognised = _with_its_code(store, given, record, named)
        if digest == stored["digest"]:
            nearest = recognised
        if recognised.digest() == digest or _is_of_another_version(store, stored, recognised, digest, record):
            _note(store, given, record, named)
            return recognised.known_as(digest)
        if applied and digest == stored["digest"]:
            _note(store, given, record, named)
    return nearest


def _candidates(store: Store, stored: Json) -> Iterator[tuple[str, Json]]:
    """The plans that the store knows, by their digests and records: the one in force first."""
    known = (name.removeprefix(PLANS).removesuffix(KNOWN) for name in store.list(PLANS) if name.endswith(KNOWN))
    for digest in dict.fromkeys([stored["digest"], *sorted(known)]):
        record = store.get(plan_record_name(digest))
        if record is not None:
            yield digest, RECORD.read(record, plan_record_name(digest))


def _named(given: Plan, same_code: bool | Sequence[str]) -> frozenset[str]:
    """The operators whose code is said to be the same."""
    with_code = [node.name for node in given.nodes if node.code.digest]
    if isinstance(same_code, bool):
        return frozenset(with_code if same_code else ())
    names = [same_code] if isinstance(same_code, str) else list(same_code)
    for name in names:
        if name not in with_code:
            there = f"; those that have are {', '.join(with_code)}" if with_code else ""
            raise ConfigError(f"same_code: there is no operator {name!r} with Python code{did_you_mean(name, with_code)}{there}")
    return frozenset(names)


def _with_its_code(store: Store, given: Plan, record: Json, named: frozenset[str]) -> Plan:
    """The flow with the recorded code of operators whose code was said to do the same."""
    codes = {
        name: was
        for name, was in _changed_code(given, record).items()
        if name in named or store.get(_same_name(name, given.node(name).code.digest, was.digest)) is not None
    }
    return given.with_code(codes) if codes else given


def _changed_code(given: Plan, record: Json) -> dict[str, Code]:
    """The recorded code of the operators whose code was changed since."""
    operators = record["operators"]
    with_code = [node for node in given.nodes if node.code.digest and operators.get(node.name, {}).get("code")]
    return {node.name: Code.recorded(operators[node.name]) for node in with_code if operators[node.name]["code"] != node.code.digest}


def _note(store: Store, given: Plan, record: Json, named: frozenset[str]) -> None:
    for name, was in _changed_code(given, record).items():
        if name not in named:
            continue
        now = given.node(name).code
        changed = ", ".join(parts_that_differ(was.parts, now.parts)) or "all of it"
        noted = store.put_if_absent(_same_name(name, now.digest, was.digest), json.dumps({"changed": changed}).encode())
        if noted:
            _LOG.warning(
                f"flow '{given.flow}': the changed code of '{name}' ({changed}) is taken for the same, as was said; the store notes it"
            )


def _same_name(operator: str, now: str, was: str) -> str:
    return f"{PLANS}same/{operator}.{now}.{was}"


def _is_of_another_version(store: Store, stored: Json, given: Plan, digest: str, record: Json) -> bool:
    """Whether all that differs is how another version of Polars writes expressions and types."""
    mine = given.record()
    if record["made_with"]["Polars"] == mine["made_with"]["Polars"]:
        return False
    written = _written_anew(store, stored if digest == stored["digest"] else {"digest": digest})
    return _is_same(mine, record) or (written is not None and _is_same(mine, written.record()))


def _is_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two records, which may be of two versions, are of one plan."""
    mine, theirs = one["operators"], other["operators"]
    return (
        one["flow"] == other["flow"]
        and mine.keys() == theirs.keys()
        and all(
            all(op[part] == theirs[name][part] for part in ("kind", "code", "inputs", "columns"))
            and (op["does"] == theirs[name]["does"] or (op["sql"] is not None and op["sql"] == theirs[name]["sql"]))
            for name, op in mine.items()
        )
    )


def _written_anew(store: Store, stored: Json) -> Plan | None:
    """The stored plan, as the version that runs writes it; None where it cannot be read."""
    found = find_packed(store, stored)
    if found is None:
        return None
    try:
        plan = read_packed(store, *found)
        plan.record()
    except Exception as error:
        _LOG.info(f"store {store.url}: the plan {stored['digest'][:12]} cannot be read by this version ({type(error).__name__}: {error})")
        return None
    return plan
