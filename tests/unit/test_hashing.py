"""The hashes of rows against Python's own md5, on texts of every length that a block may end in."""

from __future__ import annotations

import hashlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kalla import machine_code
from kalla.reconcile import loops
from kalla.reconcile.evidence.hashing import sum_of_hashes

TEXTS = st.text(max_size=6) | st.integers(0, 200).map(lambda size: "x" * size)


@pytest.fixture(autouse=True, scope="module")
def compiled() -> None:
    machine_code.prepare(loops.__name__)


@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=40), st.none() | TEXTS, st.integers(0, 3))
def test_rows_are_hashed_as_defined(
    rows: list[tuple[str, str]], same: str | None, left_out: int
) -> None:
    whole = [pa.array([row[part] for row in rows], pa.string()) for part in (0, 1)]
    columns = [same, whole[0].slice(left_out), "é", None, whole[1].slice(left_out), same]
    shown = "∅" if same is None else same
    due = [f"{shown}\x1f{one}\x1fé\x1f∅\x1f{two}\x1f{shown}" for one, two in rows[left_out:]]
    assert sum_of_hashes(columns, len(due)) == summed(due)


def test_texts_of_every_length_are_hashed_as_defined() -> None:
    texts = ["y" * size for size in range(200)]
    assert sum_of_hashes([pa.array(texts)], len(texts)) == summed(texts)


def summed(texts: list[str]) -> int:
    hashes = (hashlib.md5(each.encode(), usedforsecurity=False).digest() for each in texts)
    return sum(int.from_bytes(each, "little") for each in hashes)
