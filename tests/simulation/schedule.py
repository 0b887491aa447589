"""One schedule: drivers that live, fail, stand still and die on one disk until the input is used up; then everything is compared.

All that happens follows from the seed. Between and after the drivers' lives the checks are those of the design's invariants.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tests.simulation.disk import Crash, Disk, Faults, Ledger, View
from tests.simulation.parts import FILE_ROWS, OPERATOR, SINK, Counted, Named, SimulatedCompactor, SimulatedRunner, World, WorldSink, rows_of

from meander.clock import FakeClock
from meander.coordinate.routing import rebalance
from meander.epochs.loop import Loop
from meander.epochs.options import LoopOptions, Tenure
from meander.epochs.parts import Parts
from meander.errors import Fenced, Retryable
from meander.state import compaction as compaction_module
from meander.state import log as log_module
from meander.state.log import Log, read_manifest, read_snapshot, snapshots
from meander.state.manifest import Manifest
from meander.state.reading import read_rows
from meander.state.seen import load_seen
from meander.state.table import Kept

State = dict[int, tuple[int, int]]


class Schedule:
    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.retain = rng.randrange(1, 4)
        self.ledger = Ledger(self.retain)
        self.disk = Disk(self.ledger)
        self.world = World(self.ledger)
        self.clock = FakeClock(1_000.0, seed)
        self.snapshot_every, self.fewest = rng.choice((2, 3, 4)), rng.choice((2, 3, 4))
        self.sizes = {"counted": rng.randrange(8, 18), "named": FILE_ROWS * rng.randrange(2, 6)}
        self.lives: list[str] = []
        """How each driver ended, in order; printed on failure."""

    def run(self) -> None:
        with _small_constants(self.snapshot_every, self.fewest):
            if self.rng.random() < 0.05:
                self._nap_in_a_takeover()
            for _ in range(self.rng.randrange(1, 5)):
                self._live(self._draw_faults(depth=0), steps=self.rng.randrange(1, 7))
                self._check_retained()
            self._finish()
            if self.rng.random() < 0.04:
                self._run_on_for_long()
                self._check_nothing_lingers()

    # -- lives ----------------------------------------------------------------------------------------------------

    def _draw_faults(self, depth: int) -> Faults:
        rng = self.rng
        faults = Faults(often=rng.choice((0.0, 0.0, 0.01, 0.04)))
        if rng.random() < 0.6:
            faults.crash_at = rng.randrange(1, 120)
        if depth < 2 and rng.random() < 0.5:
            faults.stopped_at = rng.randrange(1, 100)
            others = rng.choice((1, 1, 2))
            faults.meanwhile = lambda: [self._live(self._draw_faults(depth + 1), rng.randrange(0, 9)) for _ in range(others)] and None
        return faults

    def _nap_in_a_takeover(self) -> None:
        """A newcomer stands still while it takes over, and wakes up when the live owner has collected what it was reading."""
        self.sizes["counted"] += 25
        view = View(self.disk, Faults(), self.rng)
        owner = self._open(view, Log.take_over(view, self.clock, key_groups=4), flaky=0.0)
        owner.recover()
        for _ in range(self.rng.randrange(1, 3)):
            owner.step()
        fenced = []

        def go_on(steps: int) -> None:
            try:
                for _ in range(0 if fenced else steps):
                    owner.step()
            except Fenced:
                fenced.append(True)

        self._live(Faults(stopped_at=self.rng.randrange(2, 10), meanwhile=lambda: go_on(12)), steps=1)
        committed = len(self.ledger.epochs)
        go_on(1)
        assert len(self.ledger.epochs) == committed, "the old owner committed after the takeover"
        self._check_retained()

    def _live(self, faults: Faults, steps: int) -> None:
        """One driver, from its takeover to its end."""
        rng = self.rng
        flaky = rng.choice((0.0, 0.05, 0.15)) if faults.often or faults.crash_at else 0.0
        view = View(self.disk, faults, rng)
        generation: int | None = None
        try:
            log = Log.take_over(view, self.clock, key_groups=4)
            generation = log.manifest.generation
            loop = self._open(view, log, flaky)
            loop.recover()
            for _ in range(steps):
                if self.rng.random() < 0.15:
                    loop.requests.put(partial(self._rescale, loop))
                loop.step()
                self.clock.sleep(1.0)
                if loop.finished():
                    break
            loop.close()
            end = "ended"
        except Crash:
            end = "crashed"
        except Retryable as error:
            end = f"gave up ({error})"
        except Fenced:
            assert self.ledger.manifest.generation > (generation or 0), "fenced, although nobody took the store over"
            end = "fenced"
        assert "gave up" not in end or faults.often or flaky, f"an error without a fault: {end}"
        self.lives.append(f"generation {generation} {end} at epoch {self.ledger.manifest.epoch}")

    def _rescale(self, loop: Loop) -> None:
        loop.reroute(OPERATOR, rebalance(loop.routing[OPERATOR], self.rng.choice((1, 2, 3, 4))))

    def _open(self, view: View, log: Log, flaky: float) -> Loop:
        rng = self.rng
        sources = {
            "counted": Counted("counted", self.sizes["counted"], rng, flaky / 3),
            "named": Named("named", self.sizes["named"], rng, flaky / 3, self.world, view),
        }
        runner = SimulatedRunner(view, self.clock, log.manifest.generation, rng, flaky)
        compactor = SimulatedCompactor(view, self.clock, log.manifest, rng)
        plan = {"flow": "simulated", "version": 1, "digest": "0" * 16}
        parts = Parts(plan, {}, sources, {SINK: WorldSink(self.world, view)}, {OPERATOR: {OPERATOR: Kept(("key",))}})
        options = LoopOptions(rng.choice((1, 1, 2, 3)), self.retain, rng.random() < 0.7)
        return Loop(Tenure(view, self.clock, log), parts, runner, compactor=compactor, options=options)

    def _finish(self) -> None:
        """A clean driver uses the input up, another one starts and sweeps; then all is compared."""
        self._live(Faults(), steps=200)
        assert self.lives[-1].split()[2] == "ended", self.lives[-1]
        self.disk.late, late = [], self.disk.late
        for _, effect in late:
            effect()
        self._live(Faults(), steps=1)
        assert self.lives[-1].split()[2] == "ended", self.lives[-1]
        self._check_input()
        self._check_output_and_state()
        self._check_garbage()

    # -- checks ---------------------------------------------------------------------------------------------------

    def _check_input(self) -> None:
        """Every input row is in exactly one decision, and what is not needed any more was put away, whoever died."""
        taken: dict[str, list[int]] = {name: [] for name in self.sizes}
        for entry in self.ledger.epochs:
            for source, payload in entry["splits"]:
                taken[source].extend(range(payload["start"], payload["end"]))
        for name, size in self.sizes.items():
            assert sorted(taken[name]) == list(range(size)), f"source {name}: rows {sorted(taken[name])} of {size} were decided"
        assert self.world.released == self.ledger.names[self.ledger.manifest.epoch], "not all that was read was put away in the end"

    def _check_output_and_state(self) -> None:
        """Output, the state, and that of some retained epoch equal a plain fold over the decisions."""
        folded: State = {}
        states: dict[int, State] = {0: {}}
        expected: dict[int, list[list[int]]] = {}
        for entry in self.ledger.epochs:
            touched = set()
            for source, payload in entry["splits"]:
                for key, value in rows_of(source, payload):
                    count, total = folded.get(key, (0, 0))
                    folded[key] = (count + 1, total + value)
                    touched.add(key)
            expected[entry["epoch"]] = sorted([key, *folded[key]] for key in touched)
            states[entry["epoch"]] = dict(folded)
        assert self.world.published == expected
        for epoch in {self.ledger.manifest.epoch, self.rng.choice(self.ledger.retained())}:
            found = self._read(read_manifest(self.disk, epoch))
            assert found == states[epoch], f"state of epoch {epoch} is {found}, not {states[epoch]}"

    def _read(self, manifest: Manifest) -> State:
        if OPERATOR not in manifest.tables:
            return {}
        rows = read_rows(self.disk, manifest.tables[OPERATOR], manifest.key_groups).rows()
        found = {key: (count, total) for key, count, total in rows}
        assert len(found) == len(rows), "a key has two rows"
        return found

    def _check_retained(self) -> None:
        """What the store says of every retained epoch is what was decided, and all of it is there."""
        for epoch in self.ledger.retained():
            manifest, decided = read_manifest(self.disk, epoch), self.ledger.history[epoch]
            assert (manifest.tables, manifest.offsets, manifest.position) == (decided.tables, decided.offsets, decided.position)
            assert load_seen(self.disk, manifest, "named") == self.ledger.names[epoch], f"names of epoch {epoch}"
            missing = manifest.segment_names() - set(self.disk.objects)
            assert not missing, f"epoch {epoch} of {self.ledger.manifest.epoch} needs {missing}"

    def _check_garbage(self) -> None:
        """After a clean start nothing is left that neither a retained epoch nor the base of the log names."""
        self._check_retained()
        ledger, horizon = self.ledger, self.ledger.manifest.epoch - self.retain
        found = [read_snapshot(self.disk, generation, position) for position, generation in snapshots(self.disk)]
        alive = {name for manifest in ledger.states if manifest.epoch >= horizon - 1 for name in manifest.segment_names()}
        staged = {file["name"] for files in ledger.manifest.staged.values() for file in files}
        named = {name for manifest in (ledger.manifest, *found) if manifest for names in manifest.seen.values() for name in names}
        for folder, wanted in (("segments/", alive), ("staged/", staged), ("seen/", named)):
            left = set(self.disk.list(folder)) - wanted
            assert not left, f"garbage at epoch {ledger.manifest.epoch}: {sorted(left)}"

    def _run_on_for_long(self) -> None:
        """More input for one clean driver, so that everything of the wild times leaves retention; then a clean start."""
        self.sizes["counted"] += 30
        self._finish()

    def _check_nothing_lingers(self) -> None:
        """Of a long past there remain: one snapshot at or before the horizon, the entries after it, and the seals."""
        horizon = self.ledger.manifest.epoch - self.retain
        found = [(position, read_snapshot(self.disk, generation, position)) for position, generation in snapshots(self.disk)]
        old = [position for position, manifest in found if manifest is not None and manifest.epoch <= horizon]
        assert len(old) == 1
        entries = [name.split("/")[1:] for name in self.disk.list("log/")]
        seals = {generation: max(p for g, p in entries if g == generation) for generation, _ in entries}
        if self.ledger.first_snapshot not in self.disk.objects:  # the entries before the first one go with it
            assert [p for g, p in entries if int(p) <= old[0] and p != seals[g]] == []


@contextmanager
def _small_constants(snapshot_every: int, fewest: int) -> Iterator[None]:
    """Snapshots, collection and merges within a few epochs."""
    before = log_module.SNAPSHOT_EVERY, compaction_module.FEWEST
    log_module.SNAPSHOT_EVERY, compaction_module.FEWEST = snapshot_every, fewest
    try:
        yield
    finally:
        log_module.SNAPSHOT_EVERY, compaction_module.FEWEST = before


def run_schedule(seed: int) -> Schedule:
    """Run one schedule; a failure says which, and how its drivers ended."""
    schedule = Schedule(seed)
    try:
        schedule.run()
    except BaseException as error:
        lives = "\n  ".join(schedule.lives)
        error.add_note(
            f"seed {seed}: replay with python -m tests.simulation.hunt --simulation protocol --seeds {seed}:{seed + 1}\n  {lives}"
        )
        raise
    return schedule
