"""How API processes and query workers authenticate each other: a shared token, certificates, or
both.
"""

from __future__ import annotations

import hmac
import ssl
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import grpc

from kalla.errors import StartFailed
from kalla.settings import Query


@dataclass(frozen=True)
class Tls:
    """Files in PEM: who signs the peers' certificates, one's own certificate and its key.

    `server_name` is what a worker's certificate must be for; empty: the address it is dialled at.
    """

    authority: Path
    certificate: Path
    key: Path
    server_name: str = ""

    def channel_credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(
            self.authority.read_bytes(), self.key.read_bytes(), self.certificate.read_bytes()
        )

    def server_credentials(self) -> grpc.ServerCredentials:
        return grpc.ssl_server_credentials(
            [(self.key.read_bytes(), self.certificate.read_bytes())],
            root_certificates=self.authority.read_bytes(),
            require_client_auth=True,
        )

    def client_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(self.authority))
        context.load_cert_chain(self.certificate, self.key)
        return context


@dataclass(frozen=True)
class PeerAccess:
    token: str = ""
    tls: Tls | None = None

    @classmethod
    def of(cls, query: Query) -> PeerAccess:
        """Raises StartFailed where a file is missing, or does not fit the others."""
        given = {
            "query.tls_authority": query.tls_authority,
            "query.tls_certificate": query.tls_certificate,
            "query.tls_key": query.tls_key,
        }
        token = query.token.get_secret_value()
        if not any(given.values()):
            return cls(token)
        missing = [name for name, path in given.items() if not path]
        if missing:
            raise StartFailed(
                f"Certificates between API and query workers need {' and '.join(missing)} as well."
            )
        tls = Tls(
            Path(query.tls_authority),
            Path(query.tls_certificate),
            Path(query.tls_key),
            query.tls_server_name,
        )
        try:
            tls.client_context()
        except (OSError, ssl.SSLError) as error:
            raise StartFailed(
                f"The certificates of {', '.join(given)} cannot be used: {error}."
            ) from None
        return cls(token, tls)

    def admits(self, authorization: str) -> bool:
        """Whether a peer with this header is admitted."""
        wanted = f"Bearer {self.token}".encode()
        return not self.token or hmac.compare_digest(authorization.encode(), wanted)

    def require_safe(self, host: str) -> None:
        """Without a token or certificates a worker may be reached from this machine alone."""
        try:
            loopback = host == "localhost" or ip_address(host).is_loopback
        except ValueError:
            loopback = False
        if not self.token and self.tls is None and not loopback:
            raise StartFailed(
                f"A query worker on {host} needs a token or certificates: set query.token to the "
                "same text for the API and all query workers, or query.tls_certificate."
            )
