"""The replicas of a flow, as the store alone shows them: their signs of life, and the sign of their
supervisor. Only reads."""

from __future__ import annotations

from typing import Any

from meander.clock import Clock
from meander.replicate.requests import live_supervisor
from meander.state.log import read_manifest
from meander.state.signs import Watch, keeper
from meander.state.stores.contract import Store


def read_roster(store: Store, clock: Clock) -> dict[str, Any]:
    """The replicas of a store. Takes half a second where all live and three where one does not: that is how long one must watch."""
    supervisor = live_supervisor(store, clock)
    known = {one["name"]: one for one in supervisor.get("replicas", ())} if supervisor else {}
    seen = Watch(store, clock).settle()
    for one in seen.values():
        one.sign.check()
    epoch = max([read_manifest(store).epoch, *(one.sign.epoch for one in seen.values())])
    keeps = keeper(one.sign for one in seen.values() if one.alive)
    rows = []
    for name in sorted(seen.keys() | known.keys()):
        sighting, reported = seen.get(name), known.get(name, {})
        process = sighting.sign.process if sighting is not None else None
        if process is not None and reported.get("process") not in (None, process.pid) and sighting is not None and not sighting.alive:
            sighting = process = None  # of the process before this one
        said = sighting.sign.said if sighting is not None else None
        row = {
            "name": name,
            "state": reported.get("state") or ("running" if sighting is not None and sighting.alive else "silent"),
            "alive": sighting is not None and sighting.alive,
            "epoch": sighting.sign.epoch if sighting else reported.get("epoch"),
            "host": process.host if process else reported.get("host"),
            "process": process.pid if process else reported.get("process"),
            "url": said.url if said else None,
            "silent_since": said.at if said is not None and sighting is not None and not sighting.alive else None,
            "keeps_house": name == keeps,
            "leads": said.leads if said is not None and sighting is not None and sighting.alive else None,
            "supervised": name in known,
            "restarts": reported.get("restarts"),
            "error": reported.get("error"),
            "log": reported.get("log"),
        }
        row["lag"] = None if row["epoch"] is None or not row["alive"] else max(0, epoch - row["epoch"])
        rows.append(row)
    shown = None if supervisor is None else {"process": supervisor["process"], "host": supervisor["host"]}
    return {"store": store.url, "epoch": epoch, "supervisor": shown, "replicas": rows}
