"""Every error Meander raises on purpose, by what the caller must do about it.

    MeanderError
    ├── FlowError        fix the flow: a name, a column, a type, a graph that cannot run
    ├── Rejected         fix the change: a modification failed on probation, and the plan before it is back
    ├── BadInput         fix the data, or run without ``strict=True``
    ├── ConfigError      fix the call or the environment: a store URL, a missing Java, an unknown option
    │   └── SparkGone    start the flow again: the Spark that it ran on was stopped, or has ended
    ├── Busy             wait, or stop the other run: the store, or a port, is in use by a live one
    ├── Retryable        try again: a store or an executor that did not answer
    │   └── Unavailable  wait: it was the store, or the store has no room; a running flow holds until it answers
    ├── Divergent        make the flow deterministic: a replica has computed something else than its siblings
    ├── Fenced           stop: another run has taken the store over, nothing you do has an effect any more
    └── Corrupted        stop and report: what is stored contradicts itself or its source

A message names the object, says what is there instead, and what to do next.
"""


class MeanderError(Exception):
    """The one class to catch for everything Meander raises on purpose.

    Example: ``try: flow.start("state/")`` … ``except md.MeanderError as error: print(error)``.
    """


class FlowError(MeanderError):
    """The flow cannot run as written: nothing was started, or nothing of the epoch that showed it was committed.

    Example: ``flow.source("orders", "in/")`` raises ``md.FlowError``.
    """


class Rejected(MeanderError):
    """A modification failed in its first epoch: nothing of that was committed, and the flow goes on as it was.

    Example: ``except md.Rejected`` around ``run.replace("clean", md.map_batches(fix))``.
    """


class BadInput(MeanderError):
    """Strict mode met a row or a file that cannot be processed: ``except md.BadInput`` around a run with ``strict=True``."""


class ConfigError(MeanderError):
    """A setting, a URL or the machine is not what is needed: ``md.files("no/such/folder")`` raises ``md.ConfigError``."""


class SparkGone(ConfigError):
    """The Spark that the flow runs on was stopped, or has ended: ``except md.SparkGone`` around ``run.await_termination()``.

    It says nothing about the flow or about a change of it: whatever was not committed is done after the next start.
    """


class Busy(MeanderError):
    """Another live run has the store, or another process the port; nothing was touched.

    Example: ``except md.Busy`` around ``flow.start("state/")``.
    """


class Retryable(MeanderError):
    """The store or an executor did not answer; the same call may succeed later.

    Example: ``raise md.Retryable("the database is away")`` in a function of ``md.foreach_batch(write)``, to be called again.
    """


class Unavailable(Retryable):
    """The store did not answer, refused, or has no room: nothing is wrong with the flow, and waiting helps."""

    def __init__(self, message: str = "", refused: bool = False) -> None:
        """``refused``: the request has had no effect, and will have none. Otherwise it may still
        take effect later."""
        super().__init__(message)
        self.refused = refused


class Divergent(MeanderError):
    """Replicas have computed different things from the same input: this one has stopped.

    Example: ``except md.Divergent`` around ``run.await_termination()``.
    """


class Fenced(MeanderError):
    """A newer generation owns the store: ``except md.Fenced`` around ``run.await_termination()``."""


class Corrupted(MeanderError):
    """Stored data contradicts itself, or a source changed after it was decided: ``except md.Corrupted`` around ``flow.start("state/")``."""
