"""Label sets that have the texts of their rows at hand, as columns: what was written before is not
spelled again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import pyarrow as pa

from kalla.query.labels import Labels
from kalla.query.store.series import labels_of_text


class Spelled(Sequence[Labels]):
    """In the order of rows: by metric, then by the text of all labels."""

    def __init__(self, metrics: pa.StringArray, texts: pa.StringArray) -> None:
        self.metrics = metrics
        self.texts = texts

    def __len__(self) -> int:
        return len(self.texts)

    @overload
    def __getitem__(self, place: int) -> Labels: ...

    @overload
    def __getitem__(self, place: slice) -> Spelled: ...

    def __getitem__(self, place: int | slice) -> Labels | Spelled:
        if isinstance(place, slice):
            return Spelled(self.metrics[place], self.texts[place])
        return labels_of_text(self.texts[place].as_py())


def joined(parts: Sequence[Spelled]) -> Spelled:
    return Spelled(
        pa.concat_arrays([part.metrics for part in parts]),
        pa.concat_arrays([part.texts for part in parts]),
    )
