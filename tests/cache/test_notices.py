"""Stewards are told which segments are gone, also those that did not answer at first."""

from __future__ import annotations

import threading

from meander.cache.client import Unreachable
from meander.cache.notices import Notices


class Post:
    """Delivers what it can: addresses of ``silent`` do not answer."""

    def __init__(self, *silent: str) -> None:
        self.silent, self.told = {*silent}, dict[str, list[str]]()
        self.tried = threading.Semaphore(0)
        self.delivered = threading.Semaphore(0)

    def __call__(self, address: str, names: list[str]) -> None:
        self.tried.release()
        if address in self.silent:
            raise Unreachable(address)
        self.told.setdefault(address, []).extend(names)
        self.delivered.release()


def test_one_that_did_not_answer_is_told_later_and_keeps_nobody_waiting() -> None:
    post = Post("slow")
    notices = Notices(post, 100)
    try:
        notices.send("slow", ["a", "b"])
        assert post.tried.acquire(timeout=20)
        notices.send("quick", ["a"])
        assert post.delivered.acquire(timeout=20)
        assert post.told == {"quick": ["a"]}
        notices.send("slow", ["c"])
        post.silent.clear()
        while len(post.told.get("slow", ())) < 3:
            assert post.delivered.acquire(timeout=20), "nobody told it again"
        assert post.told["slow"] == ["a", "b", "c"], "each once, in their order"
    finally:
        notices.close()


def test_who_is_gone_is_told_nothing_and_what_is_owed_has_a_bound() -> None:
    post = Post("gone", "slow")
    notices = Notices(post, 3)
    try:
        for number in range(10):
            notices.send("slow", [f"{number}"])
        notices.send("gone", ["a"])
        for _ in range(2):
            assert post.tried.acquire(timeout=20)
        notices.only({"slow"})
        post.silent.clear()
        assert post.delivered.acquire(timeout=20)
        assert post.told == {"slow": ["7", "8", "9"]}
    finally:
        notices.close()


def test_after_the_end_nobody_is_told_anything() -> None:
    post = Post()
    notices = Notices(post, 3)
    notices.close()
    notices.send("late", ["a"])
    assert not post.tried.acquire(timeout=0.2)
