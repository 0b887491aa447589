"""The plan to go on with, from what the log says of it and from the flow that was given; and what the store keeps of plans."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

from meander.connect.spark_stream import SparkStreamSource
from meander.epochs.stored_plans import find_packed, is_known, known_name, read_packed, started_name
from meander.errors import ConfigError, Corrupted
from meander.plan.change.layout import owing
from meander.plan.change.places import elsewhere, is_alike, settle
from meander.plan.documents import write_plan
from meander.plan.graph import Plan
from meander.plan.operators import Operator, SinkOp, SourceOp
from meander.state.formats import RECORD
from meander.state.manifest import Json, Manifest
from meander.state.reading import plan_name, plan_record_name
from meander.state.stores.contract import Store
from meander.task.physical import Compiled
from meander.task.reading import write_readers

_LOG = logging.getLogger("meander")
_KEPT = ("packed", "modification", "since", "unproven", "owes", "tables")


class Resumed(NamedTuple):
    """A plan that goes on."""

    plan: Plan
    marks: Json
    """What log entries say of it beside flow, version and digest."""
    notices: tuple[str, ...] = ()
    """Sources and sinks of which the flow that was given says something else than what is in force."""


def put_plan(store: Store, compiled: Compiled) -> None:
    """Put the records of a plan that readers, and starts of other flows, need."""
    readers = {name: keyed.reader() for name, keyed in compiled.keyed.items()}
    store.put_if_absent(plan_name(compiled.digest), write_readers(compiled.plan.flow, readers))
    store.put_if_absent(plan_record_name(compiled.digest), RECORD.write(compiled.plan.record()))


def put_known(store: Store, plan: Plan) -> None:
    """This plan was started on a store, or in force there: whatever modifications make of it, its file can be started."""
    store.put_if_absent(known_name(plan.digest()), plan.flow.encode())


def put_started(store: Store, plan: Plan, stored: Json) -> None:
    """The plan that goes on, with the folders that it has now: the next start may be that of a file that was edited meanwhile."""
    store.put(started_name(stored), write_plan(plan, "stored", plan.schemas))


def plan_before(store: Store, manifest: Manifest, given: Plan) -> tuple[Plan, Json] | None:
    """The plan in force, to which an edited file is applied. None where the file can be started as
    it is.

    The second result as in ``resume_plan``.
    """
    stored = manifest.plan
    if not stored or given.digest() == stored["digest"] or is_known(store, given.digest()):
        return None
    as_it_was = "start the flow as it was, and apply the edited file while it runs: `meander apply FLOW.py`, or run.apply(flow)"
    found = find_packed(store, stored)
    if found is None:
        raise ConfigError(f"store {store.url} has lost the plan that it runs, or was changed from outside: {as_it_was}")
    try:
        modified = owing(read_packed(store, *found), stored.get("owes", ()))
        plan = _graft(modified, given, elsewhere(modified, given)).known_as(stored["digest"])
    except Exception as error:
        raise ConfigError(
            f"store {store.url}: the plan that it runs cannot be read here ({type(error).__name__}: {error}); with the versions and the "
            f"modules that it was started with, {as_it_was}"
        ) from error
    for node in plan.nodes:
        if isinstance(node.op, SinkOp) and getattr(node.op.sink, "function", node) is None:
            raise ConfigError(
                f"sink '{node.name}': its function cannot be stored, the file has it no more, and output of the last epoch may be for it: "
                f"{as_it_was}"
            )
        if isinstance(node.op, SourceOp) and isinstance(node.op.source, SparkStreamSource) and node.op.source.dataframe() is None:
            raise ConfigError(f"source '{node.name}' is a streaming DataFrame, which only its own file has: {as_it_was}")
    return plan, {name: stored[name] for name in (*_KEPT, "brought") if name in stored}


def resume_plan(store: Store, manifest: Manifest, given: Plan) -> tuple[Plan, Json]:
    """The plan to go on with, given a flow's own: the same, or the store's last one where that was made of it by modifications.

    The flow may be the one in force, or any that this store was started with or that was in force before. The second result is what
    log entries say of the plan beside flow, version and digest.
    """
    stored, digest = manifest.plan, given.digest()
    if "packed" not in stored or (digest != stored["digest"] and not is_known(store, digest)):
        version = stored["version"] if stored and stored["digest"] == digest else given.version
        return replace(given, version=version), {}
    found = adopt_plan(store, stored, given)
    if digest != stored["digest"]:
        which = f"modification '{stored['modification']}'" if "modification" in stored else "what the file says was taken back"
        _LOG.warning(
            f"flow '{given.flow}' was modified while it ran and goes on so, with plan version {stored['version']} "
            f"({which}); run.modifications() has the history"
        )
    for words in found.notices:
        _LOG.warning(f"flow '{given.flow}': {words}")
    return found.plan, found.marks


def adopt_plan(store: Store, stored: Json, given: Plan, apart: Collection[str] = ()) -> Resumed:
    """The plan of a log entry, on the ground of the flow that was given. Runs code: a store is trusted like a checkpoint.

    ``apart`` are sources and sinks that are others in the flow that was given, and have not moved.
    """
    if "packed" not in stored and given.digest() == stored["digest"]:  # never modified
        return Resumed(replace(given, version=stored["version"]), {"tables": stored["tables"]} if "tables" in stored else {})
    name = stored["packed"] if "packed" in stored else started_name(stored)
    data = store.get(name)
    if data is None:
        raise Corrupted(f"store {store.url}: the plan '{name}' is in force by the log and missing")
    modified = owing(read_packed(store, name, data), stored.get("owes", ()))
    settled = settle(stored.get("brought", {}), modified, given)
    kept: Json = {name: stored[name] for name in _KEPT if name in stored}
    if settled.brought:
        kept["brought"] = settled.brought
    ends = {**settled.ends, **{node.name: node.op for node in modified.nodes if node.name in apart}}
    if given.digest() == stored["digest"]:  # the flow was modified into this one, and is started as it is now
        plan = replace(given, version=stored["version"], retired=modified.retired)
        return Resumed(plan.with_ends({**_gone_on(plan, modified), **ends}), kept, settled.notices)
    return Resumed(_graft(modified, given, ends).known_as(stored["digest"]), kept, settled.notices)


def _graft(modified: Plan, given: Plan, ends: Mapping[str, Operator]) -> Plan:
    """Operators that are the same in both are those of the flow that was given: its folders may have moved, and its sinks are live.

    ``ends`` are sources and sinks that are not.
    """
    mine, theirs = given.record()["operators"], modified.record()["operators"]
    sources = _gone_on(given, modified)
    nodes = []
    for node in modified.nodes:
        name = node.name
        same = name in mine and name not in ends and is_alike(mine[name], theirs[name])
        if same and not node.op.stateful:
            node = replace(given.node(name), op=sources.get(name, given.node(name).op), inputs=node.inputs)
        nodes.append(node)
    return Plan(modified.version, modified.flow, tuple(nodes), modified.retired)


def _gone_on(given: Plan, modified: Plan) -> dict[str, Operator]:
    """The sources of the flow that was given, where those of the stored plan have come to."""
    stored = {node.name: node.op for node in modified.nodes if isinstance(node.op, SourceOp)}
    return {n.name: n.op.gone_on(stored[n.name]) for n in given.nodes if isinstance(n.op, SourceOp) and n.name in stored}
