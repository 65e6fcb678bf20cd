"""Label sets with their texts, as columns: texts that were written before are reused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import pyarrow as pa

from kalla.query.labels.label_sets import Labels
from kalla.query.store.series_table import labels_of_text


class LabelTexts(Sequence[Labels]):
    """In the order of rows: by metric, then by the text of all labels."""

    def __init__(
        self,
        metrics: pa.StringArray,
        texts: pa.StringArray,
        within: tuple[LabelTexts, int] | None = None,
    ) -> None:
        self.metrics = metrics
        self.texts = texts
        # What it was cut from, and where it begins there.
        self._within = within or (self, 0)

    def __len__(self) -> int:
        return len(self.texts)

    @overload
    def __getitem__(self, place: int) -> Labels: ...

    @overload
    def __getitem__(self, place: slice) -> LabelTexts: ...

    def __getitem__(self, place: int | slice) -> Labels | LabelTexts:
        if isinstance(place, slice):
            first, beyond, step = place.indices(len(self))
            if step != 1:
                raise ValueError("a part of the rows is what lies next to each other")
            whole, before = self._within
            count = max(beyond - first, 0)
            within = (whole, before + first)
            return LabelTexts(
                self.metrics.slice(first, count), self.texts.slice(first, count), within
            )
        return labels_of_text(self.texts[place].as_py())

    @classmethod
    def joined(cls, parts: Sequence[LabelTexts]) -> LabelTexts:
        """One after another; parts of the same that follow each other are not copied."""
        whole, first = parts[0]._within
        beyond = first
        for part in parts:
            if part._within != (whole, beyond):
                return cls(
                    pa.concat_arrays([part.metrics for part in parts]),
                    pa.concat_arrays([part.texts for part in parts]),
                )
            beyond += len(part)
        return whole[first:beyond]
