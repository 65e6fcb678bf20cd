"""Regular expressions that Java may try for years, where no cancel reaches it."""

from __future__ import annotations

import re
from typing import Final

# References back, quotation and comments: what a look at the brackets alone would not understand.
_OBSCURE: Final = re.compile(r"\\[1-9kQ]|\(\?[a-zA-Z-]*x")
_ESCAPED: Final = re.compile(r"\\.", re.DOTALL)
_CLASS: Final = re.compile(r"\[\^?\]?[^\[\]]*\]")
_REPEATED: Final = re.compile(r"[*+{]")
_VARIABLE: Final = re.compile(r"[*+|]|\{\d*,")


def may_run_away(pattern: str) -> bool:
    """Whether a group is repeated that itself repeats or chooses, so that tries multiply."""
    if _OBSCURE.search(pattern):
        return True
    plain = _CLASS.sub("x", _ESCAPED.sub("x", pattern))
    if "[" in plain:  # a class within a class
        return True
    varies = [False]
    for place, sign in enumerate(plain):
        if sign == "(":
            varies.append(False)
        elif sign == ")" and len(varies) > 1:
            inside = varies.pop()
            if inside and _REPEATED.match(plain, place + 1):
                return True
            varies[-1] |= inside
        elif _VARIABLE.match(plain, place):
            varies[-1] = True
    return False
