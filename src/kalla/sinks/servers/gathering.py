"""Compiled loops that copy librdkafka's messages into columns and free them.

Separate from `librdkafka` because they load the compiler. A message is `rd_kafka_message_t` of
rdkafka.h, whose layout is part of librdkafka's ABI; its functions are called by address.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kalla.compiling import compiled

ABSENT = -1  # the length of a key, value or header that is null

# Fields of rd_kafka_message_t, in bytes from its beginning.
_PAYLOAD, _LENGTH, _KEY, _KEY_LENGTH, _OFFSET = 24, 32, 40, 48, 56

machine: Callable[[Any], Any] = intrinsic
_WORD, _HALF, _BYTE = ir.IntType(64), ir.IntType(32), ir.IntType(8)
_word = types.int64
_INT = 0xFFFFFFFF  # of what an int comes back as, the upper half means nothing


@machine
def _word_at(_: Any, address: Any) -> Any:  # noqa: ARG001  (numba asks for their names)
    def generated(context: Any, builder: Any, signature: Any, given: Any) -> Any:  # noqa: ARG001
        return builder.load(builder.inttoptr(given[0], _WORD.as_pointer()))

    return _word(_word), generated


@machine
def _half_at(_: Any, address: Any) -> Any:  # noqa: ARG001
    def generated(context: Any, builder: Any, signature: Any, given: Any) -> Any:  # noqa: ARG001
        half = builder.load(builder.inttoptr(given[0], _HALF.as_pointer()))
        return builder.sext(half, _WORD)

    return _word(_word), generated


@machine
def _byte_at(_: Any, address: Any) -> Any:  # noqa: ARG001
    def generated(context: Any, builder: Any, signature: Any, given: Any) -> Any:  # noqa: ARG001
        byte = builder.load(builder.inttoptr(given[0], _BYTE.as_pointer()))
        return builder.zext(byte, _WORD)

    return _word(_word), generated


@machine
def _copy(_: Any, to: Any, source: Any, length: Any) -> Any:  # noqa: ARG001
    def generated(context: Any, builder: Any, signature: Any, given: Any) -> Any:  # noqa: ARG001
        pointers = [builder.inttoptr(each, _BYTE.as_pointer()) for each in given[:2]]
        cgutils.raw_memcpy(builder, *pointers, given[2], 1)  # type: ignore[no-untyped-call, call-arg]
        return context.get_dummy_value()

    return types.void(_word, _word, _word), generated


@machine
def _call(_: Any, function: Any, a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:  # noqa: ARG001
    """A function of C with up to five words; what it does not take is ignored by it."""

    def generated(context: Any, builder: Any, signature: Any, given: Any) -> Any:  # noqa: ARG001
        kind = ir.FunctionType(_WORD, [_WORD] * 5)
        return builder.call(builder.inttoptr(given[0], kind.as_pointer()), list(given[1:]))

    return _word(*[_word] * 6), generated


@compiled("none: i1 i1 I1 I1 I1 I1 I1 I1 I1 I1")
def describe(messages, functions, scratch, errors, offsets, timestamps, keys, values, headers, sizes):  # type: ignore[no-untyped-def]  # noqa: E501  # fmt: skip
    """Describes each message: its error, offset and time, the lengths of key and value, and how
    many headers it has; `sizes` gets the bytes of all headers' names and of their values.
    """
    place = scratch.ctypes.data
    sizes[:] = 0
    for row in range(len(messages)):
        message = messages[row]
        errors[row] = _half_at(message)
        offsets[row] = _word_at(message + _OFFSET)
        keys[row] = _word_at(message + _KEY_LENGTH) if _word_at(message + _KEY) else ABSENT
        values[row] = _word_at(message + _LENGTH) if _word_at(message + _PAYLOAD) else ABSENT
        headers[row] = 0
        timestamps[row] = ABSENT
        if errors[row]:
            continue
        timestamps[row] = _call(functions[0], message, place, 0, 0, 0)
        if _call(functions[1], message, place, 0, 0, 0) & _INT:
            continue  # it has none
        found = _word_at(place)
        headers[row] = _call(functions[2], found, 0, 0, 0, 0)
        for number in range(headers[row]):
            _call(functions[3], found, number, place, place + 8, place + 16)
            name = _word_at(place)
            while _byte_at(name):
                name += 1
            sizes[0] += name - _word_at(place)
            if _word_at(place + 8):
                sizes[1] += _word_at(place + 16)


@compiled("none: i1 i1 I1 U1 U1 I1 U1 I1 U1")
def gather(messages, functions, scratch, keys, values, name_lengths, names, header_lengths, headers):  # type: ignore[no-untyped-def]  # noqa: E501  # fmt: skip
    """Copies keys, values and headers of messages that `describe` has measured."""
    place = scratch.ctypes.data
    key, value = keys.ctypes.data, values.ctypes.data
    name, header = names.ctypes.data, headers.ctypes.data
    count = 0
    for row in range(len(messages)):
        message = messages[row]
        if _word_at(message + _KEY):
            _copy(key, _word_at(message + _KEY), _word_at(message + _KEY_LENGTH))
            key += _word_at(message + _KEY_LENGTH)
        if _word_at(message + _PAYLOAD):
            _copy(value, _word_at(message + _PAYLOAD), _word_at(message + _LENGTH))
            value += _word_at(message + _LENGTH)
        if len(name_lengths) == 0 or _call(functions[1], message, place, 0, 0, 0) & _INT:
            continue
        found = _word_at(place)
        for number in range(_call(functions[2], found, 0, 0, 0, 0)):
            _call(functions[3], found, number, place, place + 8, place + 16)
            start = end = _word_at(place)
            while _byte_at(end):
                end += 1
            _copy(name, start, end - start)
            name += end - start
            name_lengths[count] = end - start
            header_lengths[count] = ABSENT
            if _word_at(place + 8):
                header_lengths[count] = _word_at(place + 16)
                _copy(header, _word_at(place + 8), header_lengths[count])
                header += header_lengths[count]
            count += 1


@compiled("none: i1 i1")
def free(messages, functions):  # type: ignore[no-untyped-def]
    for row in range(len(messages)):
        _call(functions[4], messages[row], 0, 0, 0, 0)
