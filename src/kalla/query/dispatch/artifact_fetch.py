"""Fetches artifacts from query workers and checks them."""

from __future__ import annotations

import httpx
import pyarrow as pa

from kalla.errors import KallaError
from kalla.query.protocol.versions import checksum_of

_CONNECT_SECONDS = 3.0
_READ_SECONDS = 10.0


class FetchProblem(KallaError):
    """An artifact could not be had: it expired, its worker is gone, or it was damaged twice."""


class ChecksumMismatch(FetchProblem):
    """The bytes that came are not those that the worker wrote."""


class ArtifactClient:
    """One pool of connections for all workers."""

    def __init__(self, token: str) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._client = httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(_READ_SECONDS, connect=_CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=64, max_keepalive_connections=32),
            trust_env=False,
        )

    async def fetch(self, url: str, size: int, checksum: str) -> pa.Buffer:
        try:
            answer = await self._client.get(url)
        except httpx.HTTPError as error:
            raise FetchProblem(f"the artifact could not be fetched: {error!r}") from error
        if answer.status_code != 200:
            raise FetchProblem(f"the artifact is not there (status {answer.status_code})")
        content = pa.py_buffer(answer.content)
        if content.size != size or checksum_of(content) != checksum:
            raise ChecksumMismatch("the artifact was damaged on its way")
        return content

    async def close(self) -> None:
        await self._client.aclose()
