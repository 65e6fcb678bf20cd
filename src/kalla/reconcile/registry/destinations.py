"""The allowed addresses of callbacks: an address covers itself and all below it, on the same
server.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from urllib.parse import SplitResult, parse_qsl, urlsplit

from kalla.errors import Problem
from kalla.redaction import is_secret_name

LONGEST_URL = 2000

# Characters that every URL parser reads the same way; no user, no backslash, no space.
_URL = re.compile(r"https?://(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?(?:/[^\s\\#]*)?")
_PRINTABLE = re.compile(r"[!-~]+")
_TRICKS = re.compile(r"/\.{1,2}(?=/|\Z)|//|%2e|%2f|%5c|%00|;", re.IGNORECASE)
_PORTS = {"https": 443, "http": 80}


def covers(registered: str, asked: str) -> bool:
    """Whether `asked` is the registered address or below it, at a boundary of its path."""
    if next(url_problems(registered), None) or next(url_problems(asked, query=True), None):
        return False
    one, other = urlsplit(registered), urlsplit(asked)
    if _server(one) != _server(other):
        return False
    folder = one.path.rstrip("/")
    return other.path.rstrip("/") == folder or other.path.startswith(folder + "/")


def url_problems(url: str, query: bool = False) -> Iterator[Problem]:
    """The problems of an address; only that of a call may have a query."""
    if len(url) > LONGEST_URL:
        yield Problem("url", f"must not be longer than {LONGEST_URL} characters")
        return
    path = url.partition("?")[0]
    if not _PRINTABLE.fullmatch(url) or not _URL.fullmatch(url):
        yield Problem("url", "must be like https://host/path, without a user and a fragment")
    elif not query and "?" in url:
        yield Problem("url", "must have no query: the calls below it may have one")
    elif _TRICKS.search(path.partition("://")[2]):
        yield Problem("url", "must have a plain path, without dots, doubled or encoded slashes")
    else:
        yield from _server_problems(urlsplit(url))
        yield from _query_problems(urlsplit(url).query)


def _query_problems(query: str) -> Iterator[Problem]:
    """The query is stored and shown with the run: secrets belong to the destination."""
    for name, _ in parse_qsl(query, keep_blank_values=True):
        if is_secret_name(name):
            # No colon after the name, or scrubbing would take the sentence for the value.
            yield Problem(
                "url", f"must not carry {name!r}, for the destination's secret signs every call"
            )


def _server_problems(url: SplitResult) -> Iterator[Problem]:
    try:
        port = url.port
    except ValueError:
        port = 0
    if port == 0:
        yield Problem("url", "must have a port from 1 to 65535")
    elif url.scheme == "http" and not _is_loopback(url.hostname or ""):
        yield Problem("url", "must be https, or http on this machine itself (127.0.0.1)")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _server(url: SplitResult) -> tuple[str, str, int]:
    return url.scheme, (url.hostname or "").lower(), url.port or _PORTS[url.scheme]
