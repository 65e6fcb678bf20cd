"""Messages of remote write as Google's own protobuf makes them, from the published definitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    message_factory,
)

Pairs = Sequence[tuple[str, str]]

V1 = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
V2 = {
    "Content-Type": "application/x-protobuf;proto=io.prometheus.write.v2.Request",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "2.0.0",
}
_TYPES = descriptor_pb2.FieldDescriptorProto
_KINDS = {
    "double": _TYPES.TYPE_DOUBLE,
    "int64": _TYPES.TYPE_INT64,
    "uint32": _TYPES.TYPE_UINT32,
    "int32": _TYPES.TYPE_INT32,
    # As bytes, so that a test can put in what is not UTF-8.
    "string": _TYPES.TYPE_BYTES,
}
_LABEL = "name:string:1 value:string:2"
_PACKAGES = {
    "v1": {
        "Label": _LABEL,
        "Sample": "value:double:1 timestamp:int64:2",
        "Histogram": "count_int:int64:1 sum:double:3 timestamp:int64:15",
        "Exemplar": "labels:Label*:1 value:double:2 timestamp:int64:3",
        "TimeSeries": "labels:Label*:1 samples:Sample*:2 exemplars:Exemplar*:3 "
        "histograms:Histogram*:4",
        "MetricMetadata": "type:int32:1 metric_family_name:string:2 help:string:4 unit:string:5",
        "Request": "timeseries:TimeSeries*:1 metadata:MetricMetadata*:3",
    },
    "v2": {
        "Sample": "value:double:1 timestamp:int64:2 start_timestamp:int64:3",
        "Histogram": "count_int:int64:1 sum:double:3 timestamp:int64:15",
        "Exemplar": "labels_refs:uint32*:1 value:double:2 timestamp:int64:3",
        "Metadata": "type:int32:1 help_ref:uint32:3 unit_ref:uint32:4",
        "TimeSeries": "labels_refs:uint32*:1 samples:Sample*:2 histograms:Histogram*:3 "
        "exemplars:Exemplar*:4 metadata:Metadata:5",
        "Request": "symbols:string*:4 timeseries:TimeSeries*:5",
    },
}


def _messages() -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    made: dict[str, Any] = {}
    for package, messages in _PACKAGES.items():
        file = descriptor_pb2.FileDescriptorProto(
            name=f"{package}.proto", package=package, syntax="proto3"
        )
        for message, fields in messages.items():
            described = file.message_type.add(name=message)
            for field in fields.split():
                name, kind, number = field.split(":")
                repeated = kind.endswith("*")
                kind = kind.removesuffix("*")
                added = described.field.add(
                    name=name,
                    number=int(number),
                    label=_TYPES.LABEL_REPEATED if repeated else _TYPES.LABEL_OPTIONAL,
                    type=_KINDS.get(kind, _TYPES.TYPE_MESSAGE),
                )
                if kind not in _KINDS:
                    added.type_name = f".{package}.{kind}"
        pool.Add(file)
        found = message_factory.GetMessages([file], pool)
        made |= {name: found[name] for name in found}
    return made


MESSAGES = _messages()


def packed(message: bytes) -> bytes:
    return bytes(pa.Codec("snappy").compress(message, asbytes=True))


def request_1(
    series: Iterable[tuple[Pairs, Iterable[tuple[int, float]]]],
    metadata: Mapping[str, tuple[int, str, str]] | None = None,
) -> Any:
    """A WriteRequest of series, each its labels and its (milliseconds, value)."""
    made = MESSAGES["v1.Request"]()
    for labels, samples in series:
        one = made.timeseries.add()
        for name, text in labels:
            one.labels.add(name=_bytes(name), value=_bytes(text))
        for time, value in samples:
            one.samples.add(timestamp=time, value=value)
    for name, (kind, told, unit) in (metadata or {}).items():
        made.metadata.add(
            metric_family_name=_bytes(name), type=kind, help=_bytes(told), unit=_bytes(unit)
        )
    return made


def request_2(series: Iterable[tuple[Pairs, Iterable[tuple[int, float]]]]) -> Any:
    """The same as a Request of version 2.0."""
    made = MESSAGES["v2.Request"]()
    made.symbols.append(b"")
    for labels, samples in series:
        one = made.timeseries.add()
        for name, text in labels:
            one.labels_refs.extend([symbol(made, name), symbol(made, text)])
        for time, value in samples:
            one.samples.add(timestamp=time, value=value)
    return made


def symbol(request: Any, text: str) -> int:
    """The reference to a text in a 2.0 request, which may be new there."""
    raw = _bytes(text)
    if raw not in request.symbols:
        request.symbols.append(raw)
    return list(request.symbols).index(raw)


def body(request: Any) -> bytes:
    """What is sent."""
    return packed(request.SerializeToString())


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")
