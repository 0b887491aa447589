"""The log: the one place where anything is decided, and who may append to it.

Vocabulary. A *generation* is one ownership of a store, from a takeover to the next. A *position* numbers the
entries of all generations in one row. The entry of position n that generation g wrote is ``log/<g>/<n>``.

How a store changes hands:

1. The newcomer reads the newest generation's log to its end, position n.
2. It puts a ``takeover`` entry at position n+1 **of the old generation**: the seal.
3. If that name exists, the old owner was still alive: back to 1. Also if a snapshot at or behind that position exists: then the name was
   free only because its entry had been collected meanwhile.
4. Otherwise the old owner's next append meets the seal and raises ``Fenced``; the newcomer goes on at n+2 under its own
   generation.

Seals are never collected, all other entries are once they are out of retention. So a writer that wakes up after any
time finds its next position taken, although the entries before it are long gone. That is why the names have the generation
in them: with positions alone a collected name could be written again.

Every entry has its writer's nonce. A put whose answer is lost or says "exists" is settled by reading back.

A generation can be *shared* by replicas: each of them may append, and who comes first has decided. The others meet its entry, apply it as
if it were their own, and go on behind it (``news``). Within one generation a collected name could be written again, by a replica that slept
through it: such an entry stands in a hole, where nobody reads it. So whoever has put an entry looks whether there is a snapshot at or
behind its position. If so, that snapshot says by the entry's nonce whether anybody has read it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from meander.clock import Clock
from meander.errors import ConfigError, Fenced, MeanderError, Retryable, Unavailable
from meander.state.formats import ENTRY, SNAPSHOT
from meander.state.manifest import Json, Manifest
from meander.state.signs import parse
from meander.state.stores.contract import Store
from meander.state.stores.opening import put_format

SNAPSHOT_EVERY = 32
_ATTEMPTS = 8


def entry_name(generation: int, position: int) -> str:
    return f"log/{generation:08d}/{position:012d}"


def snapshot_name(generation: int, position: int) -> str:
    return f"manifest/{generation:08d}-{position:012d}"


def newest_generation(store: Store) -> int:
    """The generation that owns the store; 0 where nobody ever did."""
    sealed = [int(name.split("/")[1]) for name in store.list("log/")]
    if not sealed:
        return 0
    newest = max(sealed)
    # A fresh owner has sealed its predecessor but may not have written anything of its own yet.
    positions = [int(name.split("/")[2]) for name in store.list(f"log/{newest:08d}/")]
    last = _read_entry(store, newest, max(positions))
    return newest + 1 if last is not None and last["kind"] == "takeover" else newest


def read_manifest(store: Store, epoch: int | None = None) -> Manifest:
    """The newest manifest, or the one right after ``epoch``, without owning the store. ConfigError where the log has no such epoch."""
    for _ in range(_ATTEMPTS):
        manifest = _read_manifest(store, epoch)
        if manifest is not None:
            return manifest
        # An entry was collected while it was being read: the log has moved on, look again.
    raise _moves_on(store)


def snapshots(store: Store) -> list[tuple[int, int]]:
    """(position, generation) of every snapshot there is, oldest first."""
    names = [name.removeprefix("manifest/").split("-") for name in store.list("manifest/")]
    return sorted((int(position), int(generation)) for generation, position in names)


def read_snapshot(store: Store, generation: int, position: int) -> Manifest | None:
    name = snapshot_name(generation, position)
    data = store.get(name)
    return None if data is None else Manifest.from_json(SNAPSHOT.read(data, name))


def _read_manifest(store: Store, epoch: int | None) -> Manifest | None:
    found = snapshots(store)
    base = Manifest()
    for position, generation in reversed(found):
        manifest = read_snapshot(store, generation, position)
        if manifest is None:
            return None
        if epoch is None or manifest.epoch <= epoch:
            base = manifest
            break
    result = base
    for entry in entries_after(store, base):
        if epoch is not None and result.epoch == epoch and entry["kind"] == "epoch":
            break
        result = result.apply(entry)
    # Entries go only once there is a newer snapshot. Without this look, what was collected ahead of us would pass for the log's end.
    if snapshots(store) != found:
        return None
    if epoch is not None and result.epoch != epoch:
        raise no_such_epoch(store, epoch)
    return result


def history(store: Store, until: int) -> list[Manifest]:
    """Every state from the oldest that the log still leads on from to position ``until`` or later; none where it was collected meanwhile.

    The log before the first snapshot may be whole. A snapshot that a replaced run wrote late may have none of its log left.
    """
    found = [read_snapshot(store, generation, position) for position, generation in snapshots(store)]
    for base in (Manifest(), *(manifest for manifest in found if manifest is not None)):
        states = [base]
        for entry in entries_after(store, base):
            states.append(states[-1].apply(entry))
        if states[-1].position >= until:
            return states
    return []


def readable_epochs(store: Store) -> range:
    """The epochs whose state can be read: the log leads to them, and all their segments are there.

    The log does not say how many epochs its owner retains; what there is says it. Older epochs that happen to be whole, behind one
    that is not, do not count.
    """
    for _ in range(_ATTEMPTS):
        newest = read_manifest(store)
        if not newest.epoch:
            return range(0)
        # The last entry of an epoch counts: a compaction has the same rows in other segments.
        states = {state.epoch: state for state in history(store, newest.position)}
        there = set(store.list("segments/"))  # after the log: listed before it, the segments of the newest epochs would seem to be missing
        readable = {epoch for epoch, state in states.items() if epoch and state.segment_names() <= there}
        if not states or (max(states) not in readable and read_manifest(store).position != newest.position):
            continue  # the newest is always whole: it was collected between the log and the list, so look again
        if not readable:
            return range(0)
        first = last = max(readable)
        while first - 1 in readable:
            first -= 1
        return range(first, last + 1)
    raise _moves_on(store)


def no_such_epoch(store: Store, epoch: int) -> ConfigError:
    """The error for an epoch that cannot be read: it says whether the epoch was ever there, and
    which epochs can be read."""
    epochs, newest = readable_epochs(store), read_manifest(store).epoch
    what = f"epoch {epoch} is not retained any more" if 0 <= epoch < newest else f"there is no epoch {epoch}"
    if not newest:
        instead = "the flow has not finished one yet"
    elif not epochs:
        instead = f"none can be read: segments of the newest, {newest}, are missing"
    else:
        instead = f"epochs {epochs[0]} to {epochs[-1]} can be read" if len(epochs) > 1 else f"epoch {epochs[0]} can be read"
    return ConfigError(f"store {store.url}: {what}; {instead}")


def entries_after(store: Store, manifest: Manifest) -> Iterator[Json]:
    """The log entries after a manifest, across generations, to the end."""
    generation, position = manifest.generation, manifest.position + 1
    while (entry := _read_entry(store, generation, position)) is not None:
        yield entry
        if entry["kind"] == "takeover":
            generation = entry["generation"]
        position += 1


def _moves_on(store: Store) -> Retryable:
    return Retryable(f"store {store.url}: the log moves on faster than it can be read; try again")


def _read_entry(store: Store, generation: int, position: int) -> Json | None:
    data = store.get(entry_name(generation, position))
    return None if data is None else ENTRY.read(data, entry_name(generation, position))


class Taken(MeanderError):
    """Another replica's entry stands at the log's next position: apply it, and look what is left to do."""

    def __init__(self, position: int, certain: bool = True) -> None:
        """``certain``: ours is not in the log. Otherwise nobody can say any more, and what it names must stay."""
        super().__init__(f"position {position} of the log is taken")
        self.certain = certain


class Log:
    """The right to append, as long as nobody has taken the store over."""

    def __init__(self, store: Store, clock: Clock, manifest: Manifest) -> None:
        self._store = store
        self._clock = clock
        self.manifest = manifest
        self._since_snapshot = 0
        self._doubtful = -1
        """The position of an entry of ours that was not answered."""

    @staticmethod
    def take_over(store: Store, clock: Clock, key_groups: int = 128, shared: bool = False) -> Log:
        """Become the owner: seal the old generation's log. ``shared``: one of the owners; the generation is joined where it is shared."""
        put_format(store, clock)
        while True:
            manifest = read_manifest(store)
            _make_durable(store, manifest)
            if shared and manifest.shared:
                return Log(store, clock, manifest)
            entry: Json = {
                "kind": "takeover",
                "generation": manifest.generation + 1,
                "position": manifest.position + 1,
                "nonce": clock.new_id(),
                "now": clock.now(),
            }
            if shared:
                entry["shared"] = True
            if manifest.position < 0:
                entry["key_groups"] = key_groups
            sealed = _put_settled(store, clock, entry_name(manifest.generation, manifest.position + 1), entry)
            if sealed and not _is_in_a_hole(store, entry["position"]):
                return Log(store, clock, manifest.apply(entry))

    def append(self, entry: Json) -> Manifest:
        """Make one entry the log's next. Fenced where another generation came first, Taken where a replica did."""
        before = self.manifest
        full = {**entry, "generation": before.generation, "position": before.position + 1, "nonce": self._clock.new_id()}
        after = before.apply(full)
        name = entry_name(before.generation, before.position + 1)
        try:
            is_ours = _put_settled(self._store, self._clock, name, full)
        except Retryable as error:
            if not (isinstance(error, Unavailable) and error.refused):
                self._doubtful = full["position"]
            raise
        if not is_ours:
            raise Taken(full["position"]) if before.shared else self._not_alone(full["position"])
        if before.shared and not (was_read := _was_read(self._store, full["position"], full["nonce"])):
            if was_read is False:
                self._store.delete(name)
            raise Taken(full["position"], certain=was_read is False)
        self.manifest = after
        self._since_snapshot += 1
        return after

    def news(self) -> Iterator[tuple[Json, Manifest, Manifest]]:
        """Entries that other replicas have appended, each with the manifest before and after it.
        Fenced at the generation's end."""
        while (entry := self._read_next()) is not None:
            before, self.manifest = self.manifest, self.manifest.apply(entry)
            self._since_snapshot += 1
            yield entry, before, self.manifest

    @property
    def is_in_doubt(self) -> bool:
        """Whether an entry of ours was not answered, and may still arrive: what it names may be state."""
        return self._doubtful > self.manifest.position

    def settle(self) -> None:
        """An entry of ours that was not answered, and that ``news`` has not found, cannot arrive any more after this.

        Unavailable where that is not certain, or where it has arrived just now: read the news again.
        """
        if self.is_in_doubt:
            self.append({"kind": "pass"})

    def is_behind(self) -> bool:
        """Whether the log has gone on so far that the entries after ours are collected. Lists the snapshots, which are few."""
        return _is_in_a_hole(self._store, self.manifest.position + 1)  # what is still there, ``news`` has read before

    def has_later_epoch(self) -> bool:
        """Whether a replica has committed an epoch behind ours. Takes nothing up. Fenced at the generation's end."""
        for entry in entries_after(self._store, self.manifest):
            if entry["kind"] == "takeover":
                raise self._fenced()
            if entry["kind"] == "epoch":
                return True
        return self.is_behind()

    def catch_up(self) -> Manifest:
        """Go to the log's end, wherever that is. Fenced where it is another generation's."""
        manifest = read_manifest(self._store)
        if manifest.generation != self.manifest.generation:
            raise self._fenced()
        self.manifest, self._since_snapshot = manifest, 0
        return manifest

    def check_owner(self, attempts: int = 1) -> None:
        """Fenced where another generation has taken over. An entry of ours whose put was never answered does not say so."""
        for attempt in range(attempts):
            try:
                self._read_next()
                return
            except Retryable:
                if attempt == attempts - 1:
                    raise
                self._clock.sleep(0.1 * 2**attempt)

    def _not_alone(self, position: int) -> MeanderError:
        """Why the next position is taken, although nobody but us appends: it is sealed, or a put of ours arrived that was not answered."""
        if self._read_next() is None:
            return self._fenced()
        return Unavailable(f"store {self._store.url}: an entry of this run that was not answered is in the log, at position {position}")

    def _read_next(self) -> Json | None:
        """The entry behind ours. Fenced where it is another generation's, whatever its format: a newer Meander may have taken over."""
        name = entry_name(self.manifest.generation, self.manifest.position + 1)
        data = self._store.get(name)
        if data is None:
            return None
        if (parse(data) or {}).get("generation", self.manifest.generation) != self.manifest.generation:
            raise self._fenced()
        return ENTRY.read(data, name)

    def _fenced(self) -> Fenced:
        return Fenced(
            f"store {self._store.url}: generation {self.manifest.generation} (this run) was replaced by a newer one; "
            "nothing this run does has an effect any more. Stop it."
        )

    def due_for_snapshot(self) -> bool:
        return self._since_snapshot >= SNAPSHOT_EVERY

    def snapshot(self, names: Json) -> bool:
        """Write the manifest down whole, if the store answers: whether it did. It says nothing that the log does not.

        A snapshot that was not written, or may not have been, stays due and is written with the
        next call. The log is whole without it, so nothing fails and nothing waits.

        ``names`` are the files that hold the recent names from now on. They get an entry of their own: a file that only a
        snapshot knew of would be swept by a successor.
        """
        manifest = self.append({"kind": "names", "seen": names}) if names != self.manifest.seen else self.manifest
        name = snapshot_name(manifest.generation, manifest.position)
        try:
            self._store.put_if_absent(name, SNAPSHOT.write(manifest.to_json()))
        except Retryable:
            return False
        self._since_snapshot = 0
        return True


def _make_durable(store: Store, manifest: Manifest) -> None:
    """Have the takeover that a log ends with be durable: its writer may have died before it was. Then a put of its name makes it so.

    Any other entry at the end has the next one, the seal, in its folder, and is durable with that.
    """
    name = entry_name(manifest.generation - 1, manifest.position)
    data = store.get(name) if manifest.generation else None
    if data is not None:
        store.put_if_absent(name, data)


def _is_in_a_hole(store: Store, position: int) -> bool:
    """Whether a seal stands where the owner had written and collected an entry since the log was read: nobody meets it there.

    A collected entry has a snapshot behind it, written before the entry went.
    """
    return any(snapshot >= position for snapshot, _ in snapshots(store))


def _was_read(store: Store, position: int, nonce: str) -> bool | None:
    """Whether an entry of a shared generation, just put, is where the others read; None where nobody can say any more.

    It is where there is no snapshot behind it: what has been collected has one. Otherwise the first snapshot behind it knows.
    """
    for behind, generation in (found for found in snapshots(store) if found[0] >= position):
        manifest = read_snapshot(store, generation, behind)
        if manifest is None:
            return None
        back = behind - position
        return manifest.nonces[-1 - back] == nonce if back < len(manifest.nonces) else None
    return True


def _put_settled(store: Store, clock: Clock, name: str, entry: Json) -> bool:
    """Put an entry and know for certain whether it is ours that stands there. An error is ``refused`` where every try was."""
    doubt: Retryable | None = None
    data = ENTRY.write(entry)
    for attempt in range(_ATTEMPTS):
        try:
            if store.put_if_absent(name, data):
                return True
            there = store.get(name)
        except Retryable as error:
            if not (isinstance(error, Unavailable) and error.refused):
                doubt = error
            if attempt == _ATTEMPTS - 1:
                raise doubt or error from None
            clock.sleep(min(0.05 * 2**attempt, 2.0))
            continue
        if there is not None:
            return bool(json.loads(there)["nonce"] == entry["nonce"])
    raise Retryable(f"store {store.url}: '{name}' exists and cannot be read; the store does not honour put-if-absent")
