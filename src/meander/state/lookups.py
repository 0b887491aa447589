"""Tables that do not change, as objects of a store: in pieces, sorted by key hash, so that a
process that maps them need not build an index.

A *piece* is an Arrow IPC file with one record batch: ``__hash`` and the table's columns, rows of
equal hashes in the table's order. Its hashes are the index: a lookup searches them, and reads the
rows that it finds. So all processes of a machine share the mapped pages, and a process holds only
the rows that it has looked up.

A log entry's plan names a stored table by a *mark*, per operator. Names are never used twice: see ``decisions/0025``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import polars as pl
import pyarrow as pa

from meander.errors import Corrupted
from meander.state.formats import PIECE
from meander.state.hashing import Hashes, hash_keys
from meander.state.manifest import Json
from meander.state.segment import HASH, to_arrow

FOLDER = "tables/"
PIECE_BYTES = 64 << 20
"""About how large a piece is. Redis takes up to 512 MB in one value, and answers no other client
meanwhile."""
_DIGITS = 32


def object_prefix(generation: int, epoch: int, nonce: str, identity: str) -> str:
    """The prefix of the names of a table's pieces. ``epoch`` is the epoch whose entry shall name
    it: if another entry is committed for that epoch, the table is garbage."""
    return f"{FOLDER}{generation:08d}-{epoch:010d}-{nonce}-{identity}"


def identity_of(mark: Json) -> str:
    """The identity of a stored table: its content and its sorting."""
    return str(mark["object"].rsplit("-", 1)[1])


def encode_pieces(table: pl.DataFrame, keys: Sequence[str], nulls_equal: bool) -> Iterator[pa.Buffer]:
    """A table's pieces, one after the other. The memory needed beside the table is one piece, and
    the order of the rows."""
    if not nulls_equal:
        table = table.drop_nulls(keys)  # such a row is never found
    hashes = hash_keys(table.select(keys))
    order = np.argsort(hashes, kind="stable")
    rows = max(1, int(table.height * PIECE_BYTES / max(1, table.estimated_size())))
    for start in range(0, max(1, table.height), rows):
        taken = order[start : start + rows]
        found = to_arrow(pl.DataFrame([pl.Series(HASH, hashes[taken]), *table[taken]])).combine_chunks()
        found = found.replace_schema_metadata(PIECE.metadata())
        out = pa.BufferOutputStream()
        with pa.ipc.new_file(out, found.schema) as writer:
            writer.write_table(found)
        yield out.getvalue()


def check_of(piece: pa.Buffer | bytes) -> str:
    """The check value of a piece in a log entry, which shows that the piece is whole."""
    return hashlib.sha256(memoryview(piece)).hexdigest()[:_DIGITS]


class LookupTable:
    """A stored table, opened."""

    def __init__(self, name: str, pieces: Sequence[pa.Buffer], schema: Mapping[str, pl.DataType]) -> None:
        """``name`` is what the names of its pieces begin with."""
        self._schema = pl.Schema(schema)
        self._pieces: list[tuple[Hashes, pa.RecordBatch]] = []
        for number, piece in enumerate(pieces):
            reader = pa.ipc.open_file(piece)
            PIECE.in_metadata(reader.schema.metadata, f"{name}.{number:04d}")
            found = reader.read_all().combine_chunks().to_batches()
            if found:
                self._pieces.append((found[0].column(HASH).to_numpy(), found[0].drop_columns([HASH])))
        missing = [c for _, batch in self._pieces for c in self._schema if c not in batch.schema.names]
        if missing:
            raise Corrupted(f"a stored table has no column {missing[0]!r}")

    def find(self, keys: pl.DataFrame) -> pl.DataFrame:
        """The rows whose key has the hash of one of these keys: all rows of these keys, those of a key in order, and hardly any other."""
        wanted = np.unique(hash_keys(keys)) if keys.height else np.zeros(0, np.uint64)
        found = []
        for hashes, batch in self._pieces:
            begin, end = np.searchsorted(hashes, wanted), np.searchsorted(hashes, wanted, "right")
            counts = end - begin
            if counts.any():
                starts = np.cumsum(counts) - counts
                rows = np.arange(counts.sum()) + np.repeat(begin - starts, counts)
                found.append(batch.take(pa.array(rows)))
        if not found:
            return pl.DataFrame(schema=self._schema)
        rows = pl.DataFrame(pl.from_arrow(pa.Table.from_batches(found))).select(self._schema.names())
        return rows if rows.schema == self._schema else rows.cast(self._schema)
