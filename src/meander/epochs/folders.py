"""The folders that a flow reads and writes: a clash is refused before anything runs, and whenever
another plan comes into force."""

from __future__ import annotations

import os

from meander.connect.files import FilesSource
from meander.connect.parquet import ParquetSink
from meander.errors import FlowError
from meander.task.physical import Compiled


def check_folders(compiled: Compiled, dead_letters: str) -> None:
    """A file that one source puts away is gone for another; a flow that reads its own output, or
    writes two outputs into one folder, is a mistake.

    Dead letters have the names that a sink's files have: in one folder the two would meet.
    """
    read = {name: op.source for name, op in compiled.sources.items() if isinstance(op.source, FilesSource)}
    letters, own = os.path.realpath(dead_letters), "give dead_letters= a folder of its own"
    written: dict[str, str] = {}
    for name, source in read.items():
        if os.path.realpath(source.path) == letters:
            raise FlowError(f"dead letters go into {dead_letters}, which source '{name}' reads: {own}")
    for name, source in read.items():
        for other, its in read.items():
            if source.archive and other != name and os.path.realpath(its.path) == os.path.realpath(source.path):
                raise FlowError(f"source '{name}' archives the files of {source.path}, which '{other}' reads, too: read them once")
    for name, op in compiled.sinks.items():
        if not isinstance(op.sink, ParquetSink):
            continue
        folder = os.path.realpath(op.sink.path)
        if folder == letters:
            raise FlowError(f"dead letters go into {dead_letters}, which sink '{name}' writes into: {own}")
        reader = next((other for other, source in read.items() if os.path.realpath(source.path) == folder), None)
        if reader is not None:
            raise FlowError(f"sink '{name}' writes into {op.sink.path}, which source '{reader}' reads: give the sink a folder of its own")
        if folder in written:
            raise FlowError(f"sinks '{written[folder]}' and '{name}' both write into {op.sink.path}: give each a folder of its own")
        written[folder] = name
