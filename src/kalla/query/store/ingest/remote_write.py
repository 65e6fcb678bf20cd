"""Remote write 1.0 and 2.0: decodes a body into columns of samples and their metadata.

Importing this loads the kernels: import it when the first write arrives, not at the start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kalla.query.array_types import Floats, Whole
from kalla.query.store.catalogue import Metadata
from kalla.query.store.ingest import remote_write_kernels
from kalla.query.store.ingest.openmetrics import TYPES
from kalla.query.store.ingest.series_index import MalformedWrite, WriteTooLarge, fields

# So that the columns of one request stay small, whatever its bytes.
MOST_SERIES: Final = 1_000_000
MOST_SAMPLES: Final = 4_000_000
# The series of a family carry these behind its name.
_PARTS = {
    "histogram": ("_bucket", "_count", "_sum"),
    "gaugehistogram": ("_bucket", "_gcount", "_gsum"),
    "summary": ("_count", "_sum"),
}
# Of a metric whose metadata are kept: an index of Postgres takes no more.
_LONGEST_NAME = 500
_LONGEST_WORDS = 10_000
_SNAPPY = pa.Codec("snappy")


@dataclass(frozen=True)
class WriteRequest:
    """Series in the order they came; samples of series i lie at offsets[i] to offsets[i + 1].

    Its labels lie in `text` where `spans` says, in the bytes of version 1.0 whichever it was; with
    something else between them where `split` says so. A span from -1: they refer to no symbol.
    """

    text: bytes
    spans: Whole
    split: NDArray[np.bool_]
    offsets: Whole
    times: Whole
    values: Floats
    starts: Whole | None
    histograms: Whole  # of each series
    exemplars: int
    metadata: dict[str, Metadata]


def decode(body: bytes, version: int, most_bytes: int) -> WriteRequest:
    """Raises MalformedWrite or WriteTooLarge; whatever the bytes, nothing else."""
    text = unpacked(body, most_bytes)
    return _decode_1(text) if version == 1 else _decode_2(text, most_bytes)


def unpacked(body: bytes, most_bytes: int) -> bytes:
    """Snappy's block format. The size it declares is held against the limit before it is made."""
    size, start = _declared(body)
    if size > most_bytes:
        raise WriteTooLarge(
            f"the write has {size} bytes when unpacked, more than metrics.write_bytes "
            f"({most_bytes}): send fewer samples at once"
        )
    if size == 0:
        if len(body) > start:
            raise MalformedWrite("the body is not in snappy's block format")
        return b""
    try:
        return bytes(_SNAPPY.decompress(body, decompressed_size=size, asbytes=True))
    except (OSError, pa.ArrowException):
        raise MalformedWrite("the body is not in snappy's block format") from None


def _decode_1(text: bytes) -> WriteRequest:
    data = np.frombuffer(text, np.uint8)
    series, samples = _columns(len(data))
    notes = np.empty((min(len(data) // 2 + 1, MOST_SERIES), 2), np.int64)
    counts = np.zeros(remote_write_kernels.COUNTS, np.int64)
    _check(remote_write_kernels.walk_1(data, series, samples, notes, counts), counts)
    series = series[: counts[remote_write_kernels.SERIES]]
    metadata = {}
    for first, last in notes[: counts[remote_write_kernels.NOTES]].tolist():
        name, note = _note(text[first:last])
        if 0 < len(name) <= _LONGEST_NAME:
            metadata[name] = note
    spans = np.ascontiguousarray(series[:, [remote_write_kernels.FROM, remote_write_kernels.TO]])
    return _request(text, spans, series, samples, counts, metadata)


def _decode_2(text: bytes, most_bytes: int) -> WriteRequest:
    data = np.frombuffer(text, np.uint8)
    series, samples = _columns(len(data))
    symbols = np.empty((len(data) // 2 + 1, 2), np.int64)
    refs = np.empty(len(data), np.int64)
    counts = np.zeros(remote_write_kernels.COUNTS, np.int64)
    _check(remote_write_kernels.walk_2(data, series, samples, symbols, refs, counts), counts)
    series = series[: counts[remote_write_kernels.SERIES]]
    symbols = symbols[: counts[remote_write_kernels.SYMBOLS]]
    refs = refs[: counts[remote_write_kernels.REFS]]
    if len(symbols) and symbols[0, 0] != symbols[0, 1]:
        raise MalformedWrite("the first of the symbols must be the empty one")
    spans = np.empty((len(series), 3), np.int64)
    size = remote_write_kernels.expand_symbols(
        data, symbols, refs, series, np.empty(0, np.uint8), spans
    )
    if size > most_bytes:
        raise WriteTooLarge(
            f"the labels have {size} bytes when spelled out, more than metrics.write_bytes "
            f"({most_bytes}): send fewer series at once"
        )
    spelled = np.empty(size, np.uint8)
    remote_write_kernels.expand_symbols(data, symbols, refs, series, spelled, spans)
    metadata = _inline_notes(text, symbols, series, spans)
    return _request(
        spelled.tobytes(), np.ascontiguousarray(spans[:, :2]), series, samples, counts, metadata
    )


def _request(
    text: bytes,
    spans: Whole,
    series: Whole,
    samples: Whole,
    counts: Whole,
    metadata: dict[str, Metadata],
) -> WriteRequest:
    offsets = np.zeros(len(series) + 1, np.int64)
    np.cumsum(series[:, remote_write_kernels.SAMPLES], out=offsets[1:])
    # Copies: the columns were allocated for the most samples that the bytes can hold.
    kept = samples[:, : counts[remote_write_kernels.SAMPLES_ALL]].copy()
    return WriteRequest(
        text,
        spans,
        series[:, remote_write_kernels.SPLIT] != 0,
        offsets,
        kept[remote_write_kernels.TIME],
        kept[remote_write_kernels.BITS].view(np.float64),
        kept[remote_write_kernels.START] if counts[remote_write_kernels.STARTS] else None,
        series[:, remote_write_kernels.HISTOGRAMS].copy(),
        int(counts[remote_write_kernels.EXEMPLARS]),
        metadata,
    )


def _columns(size: int) -> tuple[Whole, Whole]:
    """Columns for the most samples that the bytes can hold; memory is used only where it is written
    to.
    """
    series = np.empty(
        (min(size // 2 + 1, MOST_SERIES), remote_write_kernels.SERIES_COLUMNS), np.int64
    )
    return series, np.empty((3, min(size // 2 + 1, MOST_SAMPLES)), np.int64)


def _check(code: int, counts: Whole) -> None:
    if code == remote_write_kernels.BROKEN:
        place = int(counts[remote_write_kernels.PLACE])
        raise MalformedWrite(f"the protobuf message is broken in the field at byte {place}")
    if code == remote_write_kernels.TOO_MUCH:
        raise WriteTooLarge(
            f"the write has more than {MOST_SERIES} series or {MOST_SAMPLES} samples: "
            "send fewer at once"
        )


def _note(text: bytes) -> tuple[str, Metadata]:
    """A prometheus.MetricMetadata."""
    kind, words = 0, {2: b"", 4: b"", 5: b""}
    for field, content in fields(text):
        if field == 1 and isinstance(content, int):
            kind = content
        elif field in words and isinstance(content, bytes):
            words[field] = content
    name, about, unit = (_description(words[field]) for field in (2, 4, 5))
    return name, Metadata(_type(kind), about, unit)


def _inline_notes(text: bytes, symbols: Whole, series: Whole, spans: Whole) -> dict[str, Metadata]:
    """2.0 repeats the metadata with each series; one of each kind is read."""
    columns = [
        series[:, column]
        for column in (
            remote_write_kernels.TYPE,
            remote_write_kernels.HELP,
            remote_write_kernels.UNIT,
        )
    ]
    has_metadata = (columns[0] != 0) | (columns[1] != 0) | (columns[2] != 0)
    has_metadata &= (spans[:, 0] >= 0) & (spans[:, 2] >= 0)
    distinct = set(
        zip(
            spans[has_metadata, 2].tolist(),
            *(column[has_metadata].tolist() for column in columns),
            strict=True,
        )
    )
    known = len(symbols)
    found = {}
    for metric, kind, about, unit in sorted(distinct):
        if not (0 <= about < known and 0 <= unit < known):
            raise MalformedWrite("metadata refers to a symbol that is not in the table")
        name, helped, united = (
            _description(text[symbols[each, 0] : symbols[each, 1]])
            for each in (metric, about, unit)
        )
        note = Metadata(_type(kind), helped, united)
        if 0 < len(name) <= _LONGEST_NAME:
            found[_family(name, note.type)] = note
    return found


def _family(name: str, kind: str) -> str:
    for part in _PARTS.get(kind, ()):
        if name.endswith(part) and len(name) > len(part):
            return name.removesuffix(part)
    return name


def _type(number: int) -> str:
    return TYPES[number] if 0 <= number < len(TYPES) else TYPES[0]


def _description(text: bytes) -> str:
    # A help text is for people: one bad byte is not a reason to refuse the samples with it. Nor can
    # Postgres keep a zero.
    return text.decode(errors="replace").replace("\0", "\ufffd")[:_LONGEST_WORDS]


def _declared(body: bytes) -> tuple[int, int]:
    """The size that a snappy block says it will have, and where the block goes on."""
    size = 0
    for place, byte in enumerate(body[:5]):
        size |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return size, place + 1
    raise MalformedWrite("the body is not in snappy's block format")
