"""Problems: answers to requests that cannot be done, as application/problem+json (RFC 9457).

Every kind in ``meander.errors`` has one status of its own, so that a client can raise the same kind
again. Refusals of the API itself have statuses that no kind has.
"""

from __future__ import annotations

from typing import Any

from meander import errors
from meander.errors import MeanderError

MEDIA_TYPE = "application/problem+json"
_TYPE = "urn:meander:problem:"

STATUS: dict[type[MeanderError], int] = {
    errors.SparkGone: 502,  # before what it is a kind of
    errors.ConfigError: 400,
    errors.Busy: 409,
    errors.Fenced: 410,
    errors.Divergent: 506,
    errors.FlowError: 422,
    errors.Rejected: 412,
    errors.BadInput: 424,
    errors.Corrupted: 500,
    errors.Unavailable: 504,  # before what it is a kind of
    errors.Retryable: 503,
}
REFUSALS = {
    "unauthorized": 401,
    "forbidden": 403,
    "not-found": 404,
    "method-not-allowed": 405,
    "conflict": 409,
    "unsupported-media-type": 415,
    "misdirected": 421,
}
RETRY_AFTER = "1"


class Problem(Exception):
    """A request that is refused. ``detail`` names the object, says what is there instead, and what to do next."""

    def __init__(self, kind: str, status: int, detail: str) -> None:
        super().__init__(kind, status, detail)
        self.kind, self.status, self.detail = kind, status, detail

    def to_json(self) -> dict[str, Any]:
        return {"type": f"{_TYPE}{self.kind}", "title": self.kind, "status": self.status, "detail": self.detail}

    def headers(self) -> dict[str, str]:
        if self.status == 401:
            return {"WWW-Authenticate": "Bearer"}
        return {"Retry-After": RETRY_AFTER} if self.status in (503, 504) else {}


def refusal(kind: str, detail: str) -> Problem:
    """
    >>> refusal("not-found", "there is no stage 7").status
    404
    """
    return Problem(kind, REFUSALS[kind], detail)


def of_error(error: BaseException) -> Problem:
    """The problem for an error. An error that is not one of ours shows only its kind and its first
    line.

    >>> of_error(errors.Fenced("taken over"))
    Problem('Fenced', 410, 'taken over')
    """
    for kind, status in STATUS.items():
        if isinstance(error, kind):
            return Problem(kind.__name__, status, str(error))
    text = next((line for line in str(error).splitlines() if line.strip()), "")
    return Problem("internal", 500, f"{type(error).__name__}: {text}; the log of the flow's process has more")


def to_error(problem: dict[str, Any]) -> MeanderError:
    """The error that a client raises for a problem it was answered with.

    >>> to_error({"type": "urn:meander:problem:Fenced", "detail": "taken over"})
    Fenced('taken over')
    """
    kind = str(problem.get("type", "")).removeprefix(_TYPE)
    detail = str(problem.get("detail") or problem.get("title") or "the control plane gave no reason")
    known = {error.__name__: error for error in STATUS}
    return known.get(kind, errors.ConfigError)(detail)
