"""Bytes to numbers: whatever the bytes and however many, as a dictionary has them."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kalla.query.array_types import Whole
from kalla.query.store import label_keys
from kalla.query.store.label_keys import FRESH, LabelKeys

# Some alike but for their last bytes, some longer than the words that are compared at once.
texts = st.one_of(
    st.binary(max_size=40),
    st.builds(lambda size, end: b"a" * size + end, st.integers(0, 40), st.binary(max_size=2)),
)


def laid_out(held: list[bytes]) -> tuple[label_keys.Bytes, Whole]:
    """One after another, with something between them; and where each lies."""
    data = np.frombuffer(b"#".join(held) + b"#", np.uint8)
    starts = np.cumsum([0, *(len(text) + 1 for text in held)])[:-1]
    spans = np.array([(start, start + len(text)) for start, text in zip(starts, held, strict=True)])
    return data, spans.reshape(-1, 2).astype(np.int64)


@settings(deadline=None)
@given(st.lists(st.lists(texts, max_size=30), max_size=4))
def test_bytes_lead_to_the_number_they_were_given_first(turns: list[list[bytes]]) -> None:
    table = LabelKeys()
    known: dict[bytes, int] = {}
    for turn in turns:
        data, spans = laid_out(turn)
        assert table.find(data, spans).tolist() == [known.get(text, FRESH) for text in turn]
        numbers = np.arange(len(turn)) + 100 * len(known)
        table.add(data, spans, numbers)
        for text, number in zip(turn, numbers.tolist(), strict=True):
            known.setdefault(text, number)
        assert table.find(data, spans).tolist() == [known[text] for text in turn]


def test_a_table_grows_and_forgets_nothing() -> None:
    table = LabelKeys()
    before = table.nbytes
    everything = [str(place).encode() * (1 + place % 50) for place in range(20_000)]
    for first in range(0, len(everything), 3000):
        data, spans = laid_out(everything[first : first + 3000])
        table.add(data, spans, np.arange(first, first + len(spans)))
    assert table.nbytes > before + sum(map(len, everything))
    data, spans = laid_out(everything)
    assert (table.find(data, spans) == np.arange(len(everything))).all()


def test_a_span_before_the_data_is_of_nobody() -> None:
    table = LabelKeys()
    data = np.frombuffer(b"abc", np.uint8)
    table.add(data, np.array([[0, 3]]), np.array([7]))
    assert table.find(data, np.array([[0, 3], [-1, 3], [0, 0]])).tolist() == [7, FRESH, FRESH]


def test_texts_of_the_same_hash_are_told_apart() -> None:
    table = LabelKeys()
    alike = [_of_one_hash(table._seed, first) for first in range(3)]
    data, spans = laid_out(alike)
    table.add(data, spans[:2], np.array([5, 6]))
    assert table.find(data, spans).tolist() == [5, 6, FRESH]
    # They do meet: their entries have the same hash.
    assert len(set(table._entries[:2, 0].tolist())) == 1
    table.add(data, spans[2:], np.array([7]))
    assert table.find(data, spans).tolist() == [5, 6, 7]


def _of_one_hash(seed: int, first: int) -> bytes:
    """Two words: the second takes back what the first has changed."""
    mask, mix = (1 << 64) - 1, int(label_keys._MIX)
    value = ((seed ^ 16) * mix & mask ^ first) * mix & mask
    return first.to_bytes(8, "little") + (value ^ value >> 32).to_bytes(8, "little")
