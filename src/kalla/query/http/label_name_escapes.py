"""Label names in paths: other than plain ones are escaped (`U__a_2e_b`), as of Prometheus 3."""

from __future__ import annotations

import re

_PREFIX = "U__"
_PART = re.compile(r"[^_]+|__|_([0-9A-Fa-f]{1,5}|10[0-9A-Fa-f]{4})_")


def unescaped(name: str) -> str:
    """The name that was escaped; a text that is not escaped properly is the name itself."""
    if not name.startswith(_PREFIX):
        return name
    parts: list[str] = []
    at = len(_PREFIX)
    while at < len(name):
        match = _PART.match(name, at)
        if match is None:
            return name
        code = match.group(1)
        if code is not None and 0xD800 <= int(code, 16) <= 0xDFFF:
            return name
        parts.append(chr(int(code, 16)) if code is not None else match.group().replace("__", "_"))
        at = match.end()
    return "".join(parts)
