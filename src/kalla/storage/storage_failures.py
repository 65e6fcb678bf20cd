"""What goes wrong with files and buckets, in a sentence."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from kalla.errors import InvalidInput, KallaError, NotFound, Problem, Unavailable
from kalla.redaction import scrub

_AWS_ERROR = re.compile(
    r"AWS Error ([A-Z0-9_]+)(?: \(HTTP status (\d+)\))? during \w+ operation:? ?(.*)", re.DOTALL
)
_WRONG_KEYS = {"SIGNATURE_DOES_NOT_MATCH", "INVALID_ACCESS_KEY_ID", "INVALID_CLIENT_TOKEN_ID",
               "MISSING_AUTHENTICATION_TOKEN", "UNRECOGNIZED_CLIENT"}  # fmt: skip
_AWAY = {"NETWORK_CONNECTION", "SERVICE_UNAVAILABLE", "SLOW_DOWN", "THROTTLING",
         "REQUEST_TIMEOUT", "INTERNAL_FAILURE"}  # fmt: skip

_FULL = (errno.ENOSPC, errno.EDQUOT)
NO_ROOM = tuple(map(os.strerror, _FULL))
"""What a full disk says, where its error comes as a text."""


@contextmanager
def translate_errors(url: str) -> Iterator[None]:
    """What goes wrong with a file or a bucket, in a sentence."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise meaning(url, error) from None


def meaning(url: str, error: Exception) -> KallaError:
    said = _AWS_ERROR.search(str(error))
    if said is not None:
        return _s3_meaning(url, said[1], said[2], said[3])
    if isinstance(error, FileNotFoundError):
        return NotFound(f"{url} does not exist")
    number = getattr(error, "errno", None)
    reason = os.strerror(number) if number else scrub(str(error).splitlines()[0])
    if number in (*_FULL, errno.EIO, errno.ESTALE, errno.EMFILE):
        return Unavailable(f"{url} cannot be used now: {reason}")
    return InvalidInput(Problem("", f"{url} cannot be used: {reason}"))


def is_full(error: OSError) -> bool:
    """Whether the disk or the quota of this user is full."""
    return error.errno in _FULL


def is_denial(error: Exception) -> bool:
    """Whether S3 says that it is not for these keys to know."""
    said = _AWS_ERROR.search(str(error))
    return said is not None and _is_denied(said[1], said[2])


def _is_denied(code: str, status: str | None) -> bool:
    return code == "ACCESS_DENIED" or status == "403"


def _s3_meaning(url: str, code: str, status: str | None, detail: str) -> KallaError:
    bucket = url.partition("://")[2].partition("/")[0]
    if code == "NO_SUCH_BUCKET":
        return NotFound(f"there is no bucket {bucket}")
    if code in ("NO_SUCH_KEY", "RESOURCE_NOT_FOUND"):
        return NotFound(f"{url} does not exist")
    if code in _WRONG_KEYS:
        reason = "check storage.s3_access_key and storage.s3_secret_key"
        return InvalidInput(Problem("", f"S3 does not know these keys ({url}): {reason}"))
    if status in ("301", "307", "400"):
        reason = "check storage.s3_region and storage.s3_endpoint"
        return InvalidInput(Problem("", f"S3 has {url} elsewhere: {reason}"))
    if _is_denied(code, status):
        reason = "check storage.s3_access_key, storage.s3_secret_key and what they may do"
        return InvalidInput(Problem("", f"S3 denies access to {url}: {reason}"))
    first = scrub((detail.strip().splitlines() or [code])[0])
    if code in _AWAY:
        return Unavailable(f"S3 does not answer ({url}): {first}")
    return Unavailable(f"S3 failed ({url}): {code.lower()}: {first}")
