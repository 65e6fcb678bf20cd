"""A bucket that keeps versions: the one request that no client among our packages makes."""

from __future__ import annotations

import hashlib
import hmac
from datetime import UTC, datetime
from http.client import HTTPConnection
from urllib.parse import urlsplit

from kalla.settings import Storage

_BODY = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"


def keep_versions(bucket: str, settings: Storage) -> None:
    """From now on no object of the bucket (s3://name) is lost when another takes its place."""
    name, host = bucket.removeprefix("s3://"), urlsplit(settings.s3_endpoint).netloc
    connection = HTTPConnection(host, timeout=10)
    connection.request("PUT", f"/{name}?versioning", _BODY, _signed(name, host, settings))
    assert connection.getresponse().status == 200
    connection.close()


def _signed(name: str, host: str, settings: Storage) -> dict[str, str]:
    """As S3 wants it (Signature Version 4)."""
    when, digest = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}", hashlib.sha256(_BODY).hexdigest()
    headers = {"host": host, "x-amz-content-sha256": digest, "x-amz-date": when}
    listed = ";".join(headers)
    lines = [f"{header}:{value}" for header, value in headers.items()]
    asked = "\n".join(["PUT", f"/{name}", "versioning=", *lines, "", listed, digest])
    parts = [when[:8], settings.s3_region, "s3", "aws4_request"]
    said = ["AWS4-HMAC-SHA256", when, "/".join(parts), hashlib.sha256(asked.encode()).hexdigest()]
    key = b"AWS4" + settings.s3_secret_key.get_secret_value().encode()
    for part in [*parts, "\n".join(said)]:
        key = hmac.digest(key, part.encode(), "sha256")
    credential = f"{settings.s3_access_key.get_secret_value()}/{'/'.join(parts)}"
    signature = f"Credential={credential}, SignedHeaders={listed}, Signature={key.hex()}"
    return headers | {"Authorization": f"AWS4-HMAC-SHA256 {signature}"}
