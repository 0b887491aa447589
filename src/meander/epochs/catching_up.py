"""Taking up what the log has and this loop has not done itself: entries of siblings, and its own that were not answered."""

from __future__ import annotations

from meander.epochs.attempts import Attempts
from meander.epochs.decision import Outcome
from meander.epochs.decisions import Decisions
from meander.epochs.in_force import InForce
from meander.epochs.input import Input
from meander.epochs.tidy import Tidy
from meander.state.manifest import Json, Manifest


class CatchingUp:
    """One loop's. In its thread, between two epochs or before one is committed."""

    def __init__(self, in_force: InForce, input: Input, decisions: Decisions, *, attempts: Attempts, tidy: Tidy) -> None:
        self._in_force, self._input, self._decisions, self._attempts, self._tidy = in_force, input, decisions, attempts, tidy

    def take(self, entry: Json, before: Manifest, after: Manifest) -> None:
        """Another's entry has the effects of one of ours."""
        if entry["kind"] == "epoch":
            self._tidy.published(before)
            self._input.release(entry["seen"])
        if entry["kind"] == "routing":
            for operator, table in entry["routing"].items():
                self._in_force.route(operator, table)
        self._tidy.dropped(before, after)

    def begin_anew(self, manifest: Manifest) -> None:
        """Go on from a manifest that we have not come to by ourselves."""
        self.drop()
        self.reopen()
        self._input.release(manifest.recent)  # also what an entry of ours took that was not answered
        self._in_force.route_anew(manifest)

    def drop(self) -> None:
        """Forget an epoch that was decided ahead: it is decided again."""
        self._decisions.drop()

    def reopen(self) -> None:
        """The input goes on where the log is."""
        self._input.reopen(self._in_force.parts.sources)

    def lost(self, outcome: Outcome | None) -> None:
        """An epoch that ran is not to be committed; its files, where given, are garbage."""
        if outcome is not None:
            self._attempts.throw_away(outcome)
        self._attempts.runner.settle()

    def recover_runner(self) -> None:
        """Something has failed: whatever was known of the cluster may be wrong."""
        self._attempts.runner.recover()
