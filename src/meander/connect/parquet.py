"""The sink that publishes an epoch's rows as Parquet files in a folder.

A staged file becomes visible under its final name in one step (a link), so that ``pl.read_parquet("out/*.parquet")``
sees published files only, whole, at any time. A name is made of epoch and slot: publishing again meets the same
name with the same bytes and does nothing. Other bytes under that name are another flow's output: an error,
never overwritten and never taken for our own.

The folder may move between two runs, and its files may be taken away. A start publishes the last committed epoch again, since
nobody knows whether that was done, and none before it: where its files are not in the folder any more they appear again, under the
same names and with the same bytes. Files of earlier epochs do not come back. So output that is continued in a new, empty folder
has the last epoch in both; put the old files beside the new ones, and each epoch is there once.
"""

from __future__ import annotations

import errno
import io
import os
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from meander.connect.sink import Staged
from meander.errors import ConfigError, Corrupted

# What a file system says when it cannot link here: then the bytes are copied.
_NO_LINK = {errno.EXDEV, errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS}


@dataclass(frozen=True)
class ParquetSink:
    """One file ``part-<epoch>-<slot>.parquet`` per epoch and slot that has rows."""

    path: str

    def encode(self, frame: pl.DataFrame) -> bytes:
        return encode_parquet(frame)

    def open(self) -> None:
        folder = Path(self.path)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe = folder / f".probe-{os.getpid()}"
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            raise ConfigError(f"parquet({self.path!r}): cannot write there ({error.strerror}); give another folder") from error

    def publish(self, epoch: int, files: list[Staged]) -> None:
        folder = Path(self.path)
        slots = [staged.file.slot for staged in files]
        if len(set(slots)) < len(slots):
            raise Corrupted(f"parquet({self.path!r}): epoch {epoch} has two files for one slot {sorted(slots)}; report this")
        for staged in files:
            if staged.file.rows:
                publish_one(folder / f"part-{epoch:010d}-{staged.file.slot:04d}.parquet", staged)
        if files:
            sync_folder(folder)

    def describe(self) -> str:
        return f"parquet {self.path}"

    def canonical(self) -> str:
        return "parquet"


def encode_parquet(frame: pl.DataFrame) -> bytes:
    """The frame as the bytes of one Parquet file."""
    # Measured on one core: Polars writes 1M rows in about half of pyarrow's time, and lz4 costs a third less than zstd
    # for files that are an eighth larger.
    out = io.BytesIO()
    frame.write_parquet(out, compression="lz4")
    return out.getvalue()


def publish_one(target: Path, staged: Staged) -> None:
    """Make a staged file visible under its final name, in one step; nothing where it is there already."""
    if staged.local is not None:
        try:
            os.link(staged.local, target)
            return
        except FileExistsError:
            _check_same(target, staged)
            return
        except FileNotFoundError:
            staged.get()  # says so where it is the staged file that is not there, and not the folder
            raise
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
    if target.exists():
        _check_same(target, staged)
        return
    _copy(target, staged)


def _copy(target: Path, staged: Staged) -> None:
    temporary = target.with_name(f".{target.name}.tmp")
    with open(temporary, "wb") as out:
        out.write(staged.get())
        out.flush()
        os.fsync(out.fileno())
    try:
        os.link(temporary, target)
        os.unlink(temporary)
    except FileExistsError:
        _check_same(target, staged)
        os.unlink(temporary)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        # No links at all here. Epochs are published by one live driver, so the name checked above is still free.
        os.rename(temporary, target)


def _check_same(target: Path, staged: Staged) -> None:
    if staged.local is not None and staged.local.exists() and os.path.samefile(staged.local, target):
        return
    if target.read_bytes() != staged.get():
        raise Corrupted(
            f"{target} is there already with other content: another flow or an older store wrote it. "
            "Nothing was overwritten; give the sink an empty folder, or move the old files away and start again"
        )


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
