"""What executors say of a probe, and what follows."""

from __future__ import annotations

import pytest
from tests.memory_store import MemoryStore

from meander.errors import ConfigError, Unavailable
from meander.on_spark.probe import judge, look


class Away(MemoryStore):
    def get(self, name: str) -> bytes | None:
        raise Unavailable("store s3://b/x: 503 SlowDown")


def test_an_executor_whose_store_does_not_answer_just_now_is_no_wrong_configuration() -> None:
    with pytest.raises(Unavailable, match="503 SlowDown"):
        judge("s3://b/x", b"nonce", [b"nonce", look(Away(), "probe/1")])


def test_an_executor_that_sees_another_store_is_one() -> None:
    store = MemoryStore()
    store.put("probe/1", b"nonce")
    judge("memory:", b"nonce", [look(store, "probe/1")])
    with pytest.raises(ConfigError, match="all machines share"):
        judge("memory:", b"nonce", [b"nonce", look(MemoryStore(), "probe/1")])
