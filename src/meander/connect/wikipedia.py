"""The rows of the "wikipedia" generator: edits with the fields of Wikimedia's recent-changes stream.

Pure: ``generator`` gives row numbers, times, server ranks and random bits, and gets columns back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import polars as pl

COLUMNS: dict[str, pl.DataType] = {
    "id": pl.Int64(),
    "ts": pl.Datetime("us"),
    "server_name": pl.String(),
    "title": pl.String(),
    "user": pl.String(),
    "type": pl.String(),
    "bot": pl.Boolean(),
    "minor": pl.Boolean(),
    "length_old": pl.Int64(),
    "length_new": pl.Int64(),
}

_LANGUAGES = (
    "en de fr ru es ja it zh pl pt uk ar fa sv nl vi ca he tr cs ko fi hu id no ro sr da el bg eu simple hy sk sl hr et lt arz "
    "gl ms az ka be th ur hi bn ta te ml mr kk uz lv mk sq cy af eo la is nn tl sw bs ga ast oc br ckb ba tt sh war ceb min jv "
    "my ne pa gu kn si mn ky tg yo ha ig am so zu lb fy sco an als bar nds li"
).split()
_PROJECTS = (
    ("wikipedia", 110),
    ("wiktionary", 60),
    ("wikisource", 40),
    ("wikibooks", 30),
    ("wikiquote", 30),
    ("wikivoyage", 20),
    ("wikinews", 20),
)
_SHARED = ["commons.wikimedia.org", "www.wikidata.org", "meta.wikimedia.org", "species.wikimedia.org", "www.mediawiki.org"]


def _servers() -> tuple[str, ...]:
    """300 names, the busiest first: the shared sites among the large Wikipedias, then the small projects."""
    names = [f"{language}.{project}.org" for project, count in _PROJECTS for language in _LANGUAGES[:count]]
    names = ["en.wikipedia.org", *_SHARED[:2], *names[1:8], *_SHARED[2:], *names[8:]]
    return tuple(names[:300])


SERVERS = _servers()

_FIRST = (
    "History Geography List Battle University Church Museum River Lake Mount Bridge Castle Station Treaty Song Album Novel Film "
    "Theory Economy Culture Flag Anthem Districts Rivers Birds Plants Painters Composers Architects Railways Islands"
).split()
_SECOND = (
    "Amsterdam Bologna Cairo Dresden Edinburgh Florence Geneva Havana Istanbul Jakarta Kyoto Lisbon Madrid Nairobi Oslo Prague "
    "Quito Riga Seville Tbilisi Utrecht Vienna Warsaw Xiamen Yerevan Zagreb Antwerp Bergen Cordoba Dublin Essen Fukuoka"
).split()
_TYPES = pl.Series(["edit", "edit", "edit", "edit", "edit", "new", "log", "categorize"])
_TITLES = pl.Series([f"{first} of {second}" for first in _FIRST for second in _SECOND])


@lru_cache(maxsize=4)
def _server_names(count: int) -> pl.Series:
    """The first ``count`` names; beyond the real ones numbered wikis, so that large key spaces are possible."""
    return pl.Series([*SERVERS[:count], *(f"w{rank}.wikipedia.org" for rank in range(len(SERVERS), count))])


def edits(
    number: npt.NDArray[np.int64],
    ts: pl.Series,
    servers: npt.NDArray[np.int64],
    server_count: int,
    bits: Callable[[int], npt.NDArray[np.uint64]],
) -> pl.DataFrame:
    """The edits with these numbers; ``bits(column)`` are 64 random bits per row (column 0 chose the server)."""
    who, what, size = bits(1), bits(2), bits(3)
    # Disjoint bits of one draw are independent, and a draw costs more than a shift.
    length_old = ((what >> np.uint64(24)) & np.uint64(0xFFFF)).astype(np.int64)
    change = ((what >> np.uint64(40)) & np.uint64(0x7FF)).astype(np.int64) - 512
    return pl.DataFrame(
        {
            "id": number,
            "ts": ts,
            "server_name": _server_names(server_count).gather(servers),
            "title": _TITLES.gather((what & np.uint64(1023)).astype(np.int64)),
            "user": pl.Series((who & np.uint64(0xFFFF)).astype(np.int64)),
            "type": _TYPES.gather(((what >> np.uint64(16)) & np.uint64(7)).astype(np.int64)),
            "bot": ((who >> np.uint64(32)) & np.uint64(15)) < 3,
            "minor": ((size >> np.uint64(8)) & np.uint64(3)) == 0,
            "length_old": length_old,
            "length_new": np.maximum(length_old + change, 0),
        }
    ).with_columns(pl.concat_str(pl.lit("Editor"), pl.col("user").cast(pl.String)).alias("user"))


def as_lines(frame: pl.DataFrame) -> pl.DataFrame:
    """One column ``line``: each edit as JSON text, as the real stream delivers it.

    No value holds a quote, a backslash or a control character, so nothing needs escaping.
    """
    quoted = {name for name, dtype in COLUMNS.items() if dtype in (pl.String(), pl.Datetime("us"))}
    parts: list[pl.Expr] = []
    for position, name in enumerate(COLUMNS):
        quote = '"' if name in quoted else ""
        value = pl.col(name).dt.to_string("%Y-%m-%dT%H:%M:%S%.6fZ") if name == "ts" else pl.col(name).cast(pl.String)
        before = "{" if position == 0 else f"{_quote_of(position - 1, quoted)},"
        parts += [pl.lit(f'{before}"{name}":{quote}'), value]
    parts.append(pl.lit(_quote_of(len(COLUMNS) - 1, quoted) + "}"))
    return frame.select(pl.concat_str(parts).alias("line"))


def _quote_of(position: int, quoted: set[str]) -> str:
    return '"' if list(COLUMNS)[position] in quoted else ""
