"""The changes of a running flow, for runs and for replicas: replace, insert, remove and apply, all
of them by way of ``modify``.

``Run`` makes a change in its own process, ``Replicas`` asks one of its replicas for it. Begin with ``Modifiable.modify``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, Unpack, overload

from meander.familiar.names import Suggests
from meander.plan.change.become import Become
from meander.plan.change.modify import Change, Given, Insert, Remove, Replace, StateFunction
from meander.plan.change.options import ForAll, ForOne, Guard

if TYPE_CHECKING:
    from meander.epochs.modification import Modified
    from meander.plan.change.effects import Effects
    from meander.plan.graph import Plan


class Planned(Protocol):
    """A flow, as a run needs it to apply it."""

    name: str

    def plan(self) -> Plan: ...


@dataclass(frozen=True)
class Wish:
    """A requested modification. ``Modifiable.modify`` documents its parts."""

    changes: tuple[Change, ...]
    dry_run: bool
    request_id: str | None
    author: str
    drop_state: bool | str | Sequence[str]
    upgrade: Mapping[str, StateFunction]
    backfill: Mapping[str, Mapping[str, Any]]
    guard: Guard | None
    timeout: float | str | None


class Modifiable(Suggests):
    """A running flow whose plan can be changed."""

    @overload
    def modify(self, changes: Sequence[Change], *, dry_run: Literal[True], **options: Unpack[ForAll]) -> Effects: ...
    @overload
    def modify(self, changes: Sequence[Change], **options: Unpack[ForAll]) -> Modified: ...
    def modify(
        self,
        changes: Sequence[Change],
        *,
        dry_run: bool = False,
        request_id: str | None = None,
        author: str = "",
        drop_state: bool | str | Sequence[str] = False,
        upgrade: Mapping[str, StateFunction] | None = None,
        backfill: Mapping[str, Mapping[str, Any]] | None = None,
        guard: Guard | None = None,
        timeout: float | str | None = "60s",
    ) -> Modified | Effects:
        """Several changes (``md.Replace``, ``md.Insert``, ``md.Remove``) as one, in force with the next epoch, or not at all.

        That epoch is on probation: if changed code fails in it, takes longer than ``timeout``, or ``guard(before, after)``, given the
        output of its input under both plans (a frame per sink), returns something false, the old plan runs it instead, and Rejected is
        raised with the reason. ``dry_run`` only says what would happen. A request that is repeated with its ``request_id`` is done once.

        ``drop_state`` names operators whose state may be dropped (True: all that cannot continue
        it); ``upgrade`` has for an operator a function from its state rows to the new ones;
        ``backfill`` the values of new aggregates for keys from before.

        Example: ``run.modify([md.Remove("large"), md.Replace("clean", md.filter("amount > 0"))])``.
        """
        wish = Wish(tuple(changes), dry_run, request_id, author, drop_state, upgrade or {}, backfill or {}, guard, timeout)
        return self._modify(wish)

    def _modify(self, wish: Wish) -> Modified | Effects:
        raise NotImplementedError

    @overload
    def replace(
        self, name: str, operator: Given, resume: bool | None = None, *, dry_run: Literal[True], **options: Unpack[ForOne]
    ) -> Effects: ...
    @overload
    def replace(self, name: str, operator: Given, resume: bool | None = None, **options: Unpack[ForOne]) -> Modified: ...
    def replace(self, name: str, operator: Given, resume: bool | None = None, **options: Any) -> Modified | Effects:
        """Put another operator, source or sink in the place of one, while the flow runs: ``run.replace("positive", md.filter("a > 10"))``.

        ``resume`` is for sources: whether the new one goes on where the old one is. For the options see ``modify``.
        """
        done: Modified | Effects = self.modify([Replace(name, operator, resume)], **_for_one(name, options))
        return done

    @overload
    def insert(
        self,
        name: str,
        operator: Given,
        after: str,
        before: str | Sequence[str] | None = None,
        *,
        dry_run: Literal[True],
        **options: Unpack[ForOne],
    ) -> Effects: ...
    @overload
    def insert(
        self, name: str, operator: Given, after: str, before: str | Sequence[str] | None = None, **options: Unpack[ForOne]
    ) -> Modified: ...
    def insert(
        self, name: str, operator: Given, after: str, before: str | Sequence[str] | None = None, **options: Any
    ) -> Modified | Effects:
        """Put a new operator behind ``after``, in front of all that read it or only of ``before``; a sink there is a tap.

        Example: ``run.insert("large", md.filter("amount > 100"), after="orders")``.
        """
        done: Modified | Effects = self.modify([Insert(name, operator, after, before)], **_for_one(name, options))
        return done

    @overload
    def remove(self, name: str, *, dry_run: Literal[True], **options: Unpack[ForOne]) -> Effects: ...
    @overload
    def remove(self, name: str, **options: Unpack[ForOne]) -> Modified: ...
    def remove(self, name: str, **options: Any) -> Modified | Effects:
        """Take an operator out: operators that read it read its input instead. An operator with
        state needs ``drop_state=True``.

        Example: ``run.remove("large")``.
        """
        done: Modified | Effects = self.modify([Remove(name)], **_for_one(name, options))
        return done

    @overload
    def apply(self, flow: Planned, resume: bool | None = None, *, dry_run: Literal[True], **options: Unpack[ForAll]) -> Effects: ...
    @overload
    def apply(self, flow: Planned, resume: bool | None = None, **options: Unpack[ForAll]) -> Modified: ...
    def apply(self, flow: Planned, resume: bool | None = None, **options: Any) -> Modified | Effects:
        """Become another version of the flow: all that differs, as one change.

        ``resume`` is for sources that differ in more than their columns: whether they go on where the ones before are.

        Example: ``run.apply(edited_flow)``.
        """
        done: Modified | Effects = self.modify([Become(flow, resume)], **options)
        return done


def _for_one(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Options for one operator as those of a whole modification."""
    found = dict(options)
    if found.get("drop_state") is True:
        found["drop_state"] = [name]
    for option in ("upgrade", "backfill"):
        if found.get(option) is not None:
            found[option] = {name: found[option]}
    return found
