"""Fetches messages through librdkafka's queue into columns: its C library, that of confluent-kafka.

A message costs a tenth of the time of a Python object. Only functions of rdkafka.h are called;
only the library's place in the wheel is private, and `consumer` has a fallback if it is not found.
It is loaded already: both consumers are the same library in one process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import POINTER, Structure, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import confluent_kafka
import numpy as np
from confluent_kafka import KafkaError

from kalla.errors import InvalidInput, Problem
from kalla.sinks.servers.kafka_client import Fetched, FetchFailed, Setting
from kalla.sinks.servers.message_ranges import Integers, MessageBatch, binary_column, header_column

_CONSUMER = 1
_MAJOR = 2  # the ABI that `gathering` knows
_TEXT_BYTES = 512
_FUNCTIONS = ("message_timestamp", "message_headers", "header_cnt", "header_get_all",
              "message_destroy")  # fmt: skip


class _Place(Structure):
    """rd_kafka_topic_partition_t"""

    _fields_ = [
        ("topic", c_char_p),
        ("partition", c_int32),
        ("offset", c_int64),
        ("metadata", c_void_p),
        ("metadata_size", c_size_t),
        ("opaque", c_void_p),
        ("error", c_int),
        ("private", c_void_p),
    ]


class _Places(Structure):
    """rd_kafka_topic_partition_list_t"""

    _fields_ = [("count", c_int), ("size", c_int), ("elements", POINTER(_Place))]


_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "conf_new": (c_void_p, []),
    "conf_set": (c_int, [c_void_p, c_char_p, c_char_p, c_char_p, c_size_t]),
    "conf_destroy": (None, [c_void_p]),
    "new": (c_void_p, [c_int, c_void_p, c_char_p, c_size_t]),
    "queue_get_consumer": (c_void_p, [c_void_p]),
    "queue_destroy": (None, [c_void_p]),
    "consume_batch_queue": (ctypes.c_ssize_t, [c_void_p, c_int, c_void_p, c_size_t]),
    "consumer_close": (c_int, [c_void_p]),
    "destroy": (None, [c_void_p]),
    "assign": (c_int, [c_void_p, POINTER(_Places)]),
    "position": (c_int, [c_void_p, POINTER(_Places)]),
    "topic_partition_list_new": (POINTER(_Places), [c_int]),
    "topic_partition_list_add": (POINTER(_Place), [POINTER(_Places), c_char_p, c_int32]),
    "topic_partition_list_destroy": (None, [POINTER(_Places)]),
    "err2str": (c_char_p, [c_int]),
    "version": (c_int, []),
}


@cache
def library() -> Any:
    """The C library that confluent-kafka uses, or None where it is not found or is another."""
    package = Path(confluent_kafka.__file__).parent
    for found in sorted(
        [*package.parent.glob("confluent_kafka.libs/librdkafka*"), *package.glob(".dylibs/librd*")]
    ):
        loaded = ctypes.CDLL(str(found))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(loaded, f"rd_kafka_{name}")
            function.restype, function.argtypes = result, arguments
        version = loaded.rd_kafka_version()
        if version == confluent_kafka.libversion()[1] and version >> 24 == _MAJOR:
            return loaded
    return None


class QueueConsumer:
    """Fetches one partition from an offset on, in batches without a Python object a message."""

    def __init__(
        self, settings: Mapping[str, Setting], topic: str, partition: int, offset: int
    ) -> None:
        from kalla.sinks.servers import gathering

        self._gathering = gathering
        self._library = library()
        self._topic, self._partition = topic, partition
        self._functions = np.array(
            [ctypes.cast(getattr(self._library, f"rd_kafka_{name}"), c_void_p).value
             for name in _FUNCTIONS], np.int64
        )  # fmt: skip
        self._scratch = np.zeros(4, np.int64)
        self._client = self._open(settings)
        self._queue = self._library.rd_kafka_queue_get_consumer(self._client)
        places = self._places(offset)
        self._library.rd_kafka_assign(self._client, places)
        self._library.rd_kafka_topic_partition_list_destroy(places)

    def fetch(self, most: int, seconds: float) -> Fetched:
        addresses = np.zeros(most, np.int64)
        count = self._library.rd_kafka_consume_batch_queue(
            self._queue, int(seconds * 1000), addresses.ctypes.data, most
        )
        messages = addresses[: max(0, count)]
        try:
            return self._gathered(messages)
        finally:
            self._gathering.free(messages, self._functions)

    def position(self) -> int:
        """The next offset, also after offsets without a message; negative: unknown."""
        places = self._places(0)
        self._library.rd_kafka_position(self._client, places)
        found = int(places[0].elements[0].offset)
        self._library.rd_kafka_topic_partition_list_destroy(places)
        return found

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            self._library.rd_kafka_queue_destroy(self._queue)
            self._library.rd_kafka_consumer_close(client)
            self._library.rd_kafka_destroy(client)

    def _gathered(self, addresses: Integers) -> Fetched:
        errors, offsets, timestamps, keys, values, headers = (
            np.empty(len(addresses), np.int64) for _ in range(6)
        )
        sizes = np.zeros(2, np.int64)
        self._gathering.describe(
            addresses, self._functions, self._scratch, errors, offsets, timestamps, keys, values,
            headers, sizes,
        )  # fmt: skip
        log_end = -1
        if errors.any():
            ends = errors == KafkaError._PARTITION_EOF
            for row in np.flatnonzero((errors != 0) & ~ends):
                raise FetchFailed(int(errors[row]), self._error_text(addresses[row], errors[row]))
            log_end = int(offsets[ends].max())
            good = errors == 0
            addresses, offsets, timestamps, keys, values, headers = (
                each[good] for each in (addresses, offsets, timestamps, keys, values, headers)
            )
        key_bytes = np.empty(np.maximum(keys, 0).sum(), np.uint8)
        value_bytes = np.empty(np.maximum(values, 0).sum(), np.uint8)
        name_lengths, header_lengths = (np.empty(headers.sum(), np.int64) for _ in range(2))
        name_bytes, header_bytes = (np.empty(size, np.uint8) for size in sizes)
        self._gathering.gather(
            addresses, self._functions, self._scratch, key_bytes, value_bytes, name_lengths,
            name_bytes, header_lengths, header_bytes,
        )  # fmt: skip
        batch = MessageBatch(
            self._topic,
            self._partition,
            offsets,
            timestamps,
            binary_column(keys, key_bytes),
            binary_column(values, value_bytes),
            header_column(
                headers,
                binary_column(name_lengths, name_bytes),
                binary_column(header_lengths, header_bytes),
            ),
        )
        return Fetched(batch, log_end)

    def _error_text(self, address: int, error: int) -> str:
        """An error message has its text as its payload."""
        payload = c_void_p.from_address(int(address) + 24).value
        if payload:
            return ctypes.string_at(payload).decode("utf-8", "replace")
        return str(self._library.rd_kafka_err2str(int(error)).decode())

    def _open(self, settings: Mapping[str, Setting]) -> Any:
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        given = self._library.rd_kafka_conf_new()
        try:
            for name, value in settings.items():
                written = str(value).lower() if isinstance(value, bool) else str(value)
                if self._library.rd_kafka_conf_set(
                    given, name.encode(), written.encode(), text, _TEXT_BYTES
                ):
                    raise InvalidInput(Problem("kafka.settings", text.value.decode()))
            client = self._library.rd_kafka_new(_CONSUMER, given, text, _TEXT_BYTES)
            if not client:
                raise InvalidInput(Problem("kafka.settings", text.value.decode()))
        except InvalidInput:
            self._library.rd_kafka_conf_destroy(given)
            raise
        return client

    def _places(self, offset: int) -> Any:
        places = self._library.rd_kafka_topic_partition_list_new(1)
        place = self._library.rd_kafka_topic_partition_list_add(
            places, self._topic.encode(), self._partition
        )
        place[0].offset = offset
        return places
