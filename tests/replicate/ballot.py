"""An election without ZooKeeper: a line of candidates, the first leads, who is deposed stands again behind all others."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field


@dataclass
class Ballot:
    """What ZooKeeper would know."""

    line: list[str] = field(default_factory=list)
    """Candidatures, the leader's first: ``a-1`` is the first of replica a."""
    deposed: list[str] = field(default_factory=list)
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def stand(self, name: str) -> None:
        self.line.append(f"{name}-{next(self.numbers)}")

    def remove(self, one: str) -> None:
        if one in self.line:
            self.line.remove(one)
            self.deposed.append(one)
            self.stand(one.split("-")[0])

    @property
    def order(self) -> str:
        return "".join(one.split("-")[0] for one in self.line)


class Candidate:
    """A replica's part in it."""

    def __init__(self, ballot: Ballot, name: str, deposes_after: float = 1.0) -> None:
        self._ballot, self._name = ballot, name
        self.deposes_after = deposes_after
        ballot.stand(name)

    def leads(self) -> bool:
        return self._ballot.order.startswith(self._name)

    def leader(self) -> str | None:
        return self._ballot.line[0]

    def depose(self, leader: str) -> None:
        self._ballot.remove(leader)

    def step_down(self) -> None:
        if self.leads():
            self._ballot.remove(self._ballot.line[0])

    def close(self) -> None: ...
