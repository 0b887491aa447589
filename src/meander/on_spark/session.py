"""Spark sessions with the settings that Meander needs, and facts about a session. The only place
that starts Spark."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from meander.epochs.placement import Executor
from meander.errors import ConfigError, Retryable, SparkGone
from meander.familiar.values import no_session

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.speculation": "false",
    "spark.shuffle.reduceLocality.enabled": "false",
    "spark.shuffle.compress": "false",  # blobs of hashes and numbers: compressing them costs more than moving them
    "spark.locality.wait.process": "500ms",
    "spark.locality.wait.node": "100ms",
    "spark.locality.wait.rack": "0",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.python.worker.reuse": "true",
    # Over TCP every task waits 40 ms for a delayed acknowledgement between two small writes.
    "spark.python.unix.domain.socket.enabled": "true",
    # The JVM moves blobs and schedules; rows are worked on in Python. Its optimising compiler would take cores from the epochs for minutes.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.cleaner.periodicGC.interval": "5min",
}
_GONE = "the Spark that the flow runs on {}; start the flow again with one that runs: it continues after the last committed epoch"
_GREETINGS = re.compile(
    rb"WARNING: Using incubator modules|Using Spark's default log4j profile|Setting default log level to|To adjust logging level use"
    rb"|WARN NativeCodeLoader|WARN Utils: (Your hostname|Set SPARK_LOCAL_IP|Service '\w+' could not bind)"
)
_WORKER_THREADS = {"POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1", "ARROW_IO_THREADS": "1"}


def spark(master: str | None = None, app_name: str = "meander", **settings: str) -> SparkSession:
    """A Spark session that suits Meander: an embedded local one, or on ``master``.

    ``settings`` are Spark's own, with underscores for dots: ``spark(master="local[4]", spark_driver_memory="4g")``.

    Example: ``md.spark(master="local[4]")``.
    """
    chosen = master or f"local[{os.cpu_count() or 2}]"
    # Spark gives up at the first failure of a task in local mode unless told otherwise.
    chosen = re.sub(r"^local\[(\d+|\*)\]$", r"local[\1,4]", chosen)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(chosen).appName(app_name)
    merged: dict[str, bool | float | int | str | None] = {**SETTINGS, **{f"spark.executorEnv.{k}": v for k, v in _WORKER_THREADS.items()}}
    merged.update({name.replace("_", "."): value for name, value in settings.items()})
    try:
        with _without_greetings():
            session = builder.config(map=merged).getOrCreate()
    except Exception as error:
        if "Java gateway process exited" in str(error) or "JAVA_GATEWAY_EXITED" in str(error):
            raise ConfigError(
                "Spark needs a Java 17 or 21 runtime: install one (for instance openjdk-17-jre-headless) or set JAVA_HOME"
            ) from error
        reason = _reason(error)
        if reason is not None:
            raise ConfigError(f"Spark did not start on master {chosen!r}: {reason}") from error
        raise
    session.sparkContext.setLogLevel("ERROR")
    return session


def session_options(given: object) -> dict[str, str]:
    """The arguments of ``md.spark``, given as None, as a master, or as a dict."""
    if given is None:
        return {}
    if isinstance(given, str):
        return {"master": given}
    if isinstance(given, Mapping) and all(isinstance(key, str) for key in given):
        return dict(given)
    raise ConfigError(no_session(given))


def _reason(error: Exception) -> str | None:
    """The reason that a JVM gives, and what to do; None if it was not Spark's start that failed."""
    if not isinstance(error, Py4JJavaError):
        return None
    text = _said(error)
    if "stopped SparkContext" in text or "unresponsive" in text:
        return "no master answers there; is it running, and is that its address?"
    return text


def _said(error: Py4JError) -> str:
    """An error without the places in Java that it has come by."""
    said = getattr(error, "java_exception", None)
    return str(error) if said is None else str(said).splitlines()[0]


@contextmanager
def _without_greetings() -> Iterator[None]:
    """Send standard error through a filter while a JVM is started: it drops the JVM's greetings and
    the complaints of PySpark's workers at its end (see ``worth_saying``), and passes the rest on.

    The JVM inherits the filter's input and keeps it; this process gets its own standard error back
    afterwards.
    """
    if SparkContext._gateway is not None:  # the JVM is there already, and has greeted
        yield
        return
    try:
        terminal = os.dup(2)
    except OSError:  # a process without standard error: nobody is greeted
        yield
        return
    sys.stderr.flush()
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    threading.Thread(target=_pass_on, args=(reading, os.dup(terminal)), name="spark-stderr", daemon=True).start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(terminal, 2)
        os.close(terminal)


def _pass_on(reading: int, terminal: int) -> None:
    with open(reading, "rb") as lines, open(terminal, "wb", buffering=0) as out:
        for line in worth_saying(lines):
            out.write(line)


def worth_saying(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The output of a JVM and its Python workers, without greetings, and without the last messages
    of idle workers.

    When Spark stops, such a worker reads the end of its socket, takes that for an error, cannot
    report it, and prints a traceback if the daemon does not end it before. No code of a flow is in
    that traceback: it begins and ends in PySpark's daemon.
    """
    traceback: list[bytes] = []
    for line in lines:
        if traceback:
            traceback.append(line)
            if line.startswith(b" "):
                continue
            if not _is_of_idle_worker(traceback):
                yield from traceback
            traceback = []
        elif line.startswith(b"Traceback (most recent call last):"):
            traceback = [line]
        elif not _GREETINGS.search(line):
            yield line
    yield from traceback


def _is_of_idle_worker(traceback: list[bytes]) -> bool:
    places = [line for line in traceback if line.lstrip().startswith(b'File "')]
    return traceback[-1].startswith(b"BrokenPipeError") and bool(places) and all(b"pyspark/daemon.py" in place for place in places)


def prepare_context(context: SparkContext) -> None:
    """Make a context, ours or a user's own, fit to run epochs: one thread per worker, which is what makes float sums repeatable."""
    for name, value in _WORKER_THREADS.items():
        context.environment[name] = value


@contextmanager
def answering(otherwise: str) -> Iterator[None]:
    """Calls into Spark: Retryable where one fails, and SparkGone where its JVM has ended, which does not come back."""
    try:
        yield
    except Py4JNetworkError as error:
        raise SparkGone(_GONE.format("has ended: its JVM does not answer")) from error
    except Py4JError as error:
        raise Retryable(f"Spark {otherwise}: {_said(error)}") from error


def executors(context: SparkContext) -> dict[str, Executor]:
    """The live executors, by id: the location hint that pins a task to each, and its cores.

    Retryable where Spark cannot say. SparkGone where it is gone: a context that was stopped, or whose JVM has ended, does not come back.
    """
    if context._jsc is None:
        raise SparkGone(_GONE.format("was stopped"))
    with answering("does not say which executors there are"):
        jvm, jsc = context._jvm, context._jsc.sc()
        assert jvm is not None
        listed = jvm.scala.jdk.javaapi.CollectionConverters.asJava(jsc.statusStore().executorList(True))
        found = {str(e.id()): (str(e.hostPort()).rsplit(":", 1)[0], int(e.totalCores())) for e in listed}
    if len(found) > 1:
        found.pop("driver", None)
    return {name: Executor(f"executor_{host}_{name}", cores) for name, (host, cores) in sorted(found.items())}


def is_local(context: SparkContext) -> bool:
    """Whether the driver is the only executor, and always will be."""
    return (context.master or "").partition("[")[0] == "local"
