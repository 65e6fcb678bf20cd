"""The words of an expression, with their places; strings are unquoted as Go unquotes them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, NoReturn

from kalla.query.promql.query_errors import ParseFailed
from kalla.query.promql.syntax_tree import AGGREGATORS

Kind = Literal[
    "identifier", "metric", "keyword", "operator", "aggregator", "number", "duration", "string",
    "punctuation", "end", "error",
]  # fmt: skip

OPERATOR_WORDS = frozenset({"and", "or", "unless", "atan2"})
KEYWORDS = frozenset(
    {
        "offset", "smoothed", "anchored", "by", "without", "on", "ignoring", "group_left",
        "group_right", "bool", "fill", "fill_left", "fill_right",
    }
)  # fmt: skip
PREPROCESSORS = frozenset({"start", "end", "step", "range"})
_DURATION_WORDS = frozenset({"step", "range", "min_of", "max_of"})

_SPACE = re.compile(r"[ \t\r\n]*(?:#[^\r\n]*[ \t\r\n]*)*")
_WORD = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")
_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMBER = re.compile(
    r"0[xX]_?[0-9a-fA-F][0-9a-fA-F_]*|"
    r"(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)(?:[eE][+-]?[0-9][0-9_]*)?"
)
_DURATION = re.compile(r"[0-9]+(?:ms|[smhdwy])(?:[0-9]+(?:ms|[smhdw]))*")
_SIGNS = ("==", "!=", ">=", "<=", "</", ">/", "=~", "!~")
_SINGLE = "+-*/%^<>=(){[],:@"
_OPERATORS = frozenset(
    {"+", "-", "*", "/", "%", "^", "==", "!=", ">=", "<=", "<", ">", "=~", "!~", "@", "</", ">/"}
)
_ESCAPES = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\",
}  # fmt: skip


@dataclass(frozen=True)
class Token:
    """`text` as written; `value` the unquoted string, or the word in lower case."""

    kind: Kind
    text: str
    start: int
    value: str = ""

    @property
    def end(self) -> int:
        return self.start + len(self.text)

    @property
    def described(self) -> str:
        """As Prometheus names an unexpected word."""
        quoted = go_quote(self.text)
        match self.kind:
            case "end":
                return "end of input"
            case "identifier":
                return f"identifier {quoted}"
            case "metric":
                return f"metric identifier {quoted}"
            case "number" | "duration":
                return f"{self.kind} {_cut(self.text)}"
            case "string":
                return f"string {_cut(self.text)}"
            case "keyword":
                return f"<{self.text}>"
            case "operator":
                return f"<op:{self.text}>"
            case "aggregator":
                return f"<aggr:{self.text}>"
            case _:
                return quoted


def tokens(text: str) -> list[Token]:
    """Every word of the expression and an end.

    Text that is not a token ends the list as an error: the parser may fail earlier.
    """
    return _Lexer(text).run()


def failed(text: str, position: int, message: str) -> NoReturn:
    raise ParseFailed(f"{place(text, position)}: parse error: {message}")


class _NoWord(Exception):
    pass


def place(text: str, position: int) -> str:
    """line:column, both from one; columns count bytes."""
    before = text[:position]
    line = before.count("\n") + 1
    column = len(before[before.rfind("\n") + 1 :].encode(errors="surrogateescape")) + 1
    return f"{line}:{column}"


def is_plain_name(name: str) -> bool:
    return name.isascii() and name.isidentifier()


def is_label_name(name: str) -> bool:
    """Any UTF-8 text but the empty one names a label."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return bool(name)


def go_quote(text: str) -> str:
    """A string as Go's %q writes it."""
    out = ['"']
    for character in text:
        code = ord(character)
        if character in ('"', "\\"):
            out.append("\\" + character)
        elif character in "\a\b\f\n\r\t\v":
            out.append("\\" + "abtnvfr"[code - 7])
        elif 0xDC80 <= code <= 0xDCFF:
            out.append(f"\\x{code - 0xDC00:02x}")
        elif code < 0x20 or code == 0x7F:
            out.append(f"\\x{code:02x}")
        elif not character.isprintable():
            out.append(f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
        else:
            out.append(character)
    return "".join(out) + '"'


def unquoted(text: str) -> str:
    """The value of a quoted string; bytes that are not UTF-8 are kept as surrogates."""
    quote, inner = text[0], text[1:-1]
    if quote == "`":
        return inner.replace("\r", "")
    if "\\" not in inner:
        return inner
    out = bytearray()
    at = 0
    while at < len(inner):
        if inner[at] != "\\":
            stop = inner.find("\\", at)
            stop = len(inner) if stop < 0 else stop
            out += inner[at:stop].encode(errors="surrogateescape")
            at = stop
            continue
        mark = inner[at + 1]
        at += 2
        if mark in _ESCAPES:
            out += _ESCAPES[mark].encode()
        elif mark in "01234567":
            out.append(int(inner[at - 1 : at + 2], 8))
            at += 2
        elif mark == "x":
            out.append(int(inner[at : at + 2], 16))
            at += 2
        elif mark in "uU":
            width = 4 if mark == "u" else 8
            out += chr(int(inner[at : at + width], 16)).encode(errors="surrogatepass")
            at += width
        else:
            out += mark.encode()
    return out.decode(errors="surrogateescape")


def _cut(text: str) -> str:
    return go_quote(text) if len(text) <= 10 else go_quote(text[:10]) + "..."


class _Lexer:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.found: list[Token] = []
        self.parens = 0
        self.bracket = False
        self.brace = False

    def run(self) -> list[Token]:
        try:
            while not self.found or self.found[-1].kind != "end":
                self.at = self._skipped()
                if self.at >= len(self.text):
                    self._finish()
                else:
                    self._one()
        except _NoWord as problem:
            position, message = problem.args
            self.found.append(Token("error", "", position, message))
        return self.found

    def _skipped(self) -> int:
        match = _SPACE.match(self.text, self.at)
        return match.end() if match else self.at

    def _finish(self) -> None:
        if self.brace:
            self._fail("unexpected end of input inside braces")
        if self.bracket:
            self._fail("unexpected end of input in duration expression")
        if self.parens:
            self._fail("unclosed left parenthesis")
        self._add("end", "")

    def _fail(self, message: str, position: int | None = None) -> NoReturn:
        raise _NoWord(self.at if position is None else position, message)

    def _add(self, kind: Kind, text: str, value: str | None = None) -> None:
        self.found.append(Token(kind, text, self.at, text.lower() if value is None else value))
        self.at += len(text)

    def _one(self) -> None:
        character = self.text[self.at]
        if self.bracket and not self._fits_brackets(character):
            self._fail(f"unexpected character in duration expression: {_rune(character)}")
        if character in "\"'`":
            self._string(character)
        elif self.brace:
            self._inside_braces(character)
        elif character.isascii() and (
            character.isdigit() or (character == "." and self._digit_follows())
        ):
            self._number()
        elif character.isascii() and (
            character.isalpha() or character == "_" or (character == ":" and not self.bracket)
        ):
            self._word()
        else:
            self._sign(character)

    def _fits_brackets(self, character: str) -> bool:
        """Between brackets stand durations, arithmetic over them, and a colon."""
        if word := _LABEL.match(self.text, self.at):
            return word.group().lower() in _DURATION_WORDS
        return character in "+-*/%^(),:][." or (character.isascii() and character.isdigit())

    def _digit_follows(self) -> bool:
        follower = self.text[self.at + 1 : self.at + 2]
        return follower.isascii() and follower.isdigit()

    def _sign(self, character: str) -> None:
        pair = self.text[self.at : self.at + 2]
        if pair in ("=~", "!~") or (character == "!" and pair != "!="):
            shown = _rune(pair[1:] or "\ufffd")
            self._fail(f"unexpected character after '{character}': {shown}")
        if pair in _SIGNS:
            self._add("operator", pair)
            return
        if character not in _SINGLE:
            self._fail(f"unexpected character: {_rune(character)}")
        self._balance(character)
        kind: Kind = "operator" if character in _OPERATORS else "punctuation"
        self._add(kind, character)

    def _balance(self, character: str) -> None:
        if character == "(":
            self.parens += 1
        elif character == ")":
            self.parens -= 1
            if self.parens < 0:
                self._fail("unexpected right parenthesis ')'", self.at + 1)
        elif character == "[":
            if self.bracket:
                self._fail("unexpected left bracket '['")
            self.bracket = True
        elif character == "]":
            if not self.bracket:
                self._fail("unexpected right bracket ']'")
            self.bracket = False
        elif character == "{":
            self.brace = True

    def _inside_braces(self, character: str) -> None:
        pair = self.text[self.at : self.at + 2]
        if pair in ("=~", "!~", "!="):
            self._add("operator", pair)
        elif character in "=,":
            self._add("punctuation", character)
        elif character == "}":
            self.brace = False
            self._add("punctuation", "}")
        elif character == "{":
            self._fail("unexpected left brace '{'")
        elif character == "!":
            follower = _rune(pair[1:] or "\ufffd")
            self._fail(f"unexpected character after '!' inside braces: {follower}")
        elif match := _LABEL.match(self.text, self.at):
            self._add("identifier", match.group())
        else:
            self._fail(f"unexpected character inside braces: {_rune(character)}")

    def _word(self) -> None:
        match = _WORD.match(self.text, self.at)
        if match is None:
            raise AssertionError("a word starts with a letter")
        word = match.group()
        if self.bracket and ":" in word:
            # Inside brackets a colon parts range and step: `[step():5m]`.
            word = word[: word.index(":")]
        low = word.lower()
        if low in AGGREGATORS:
            self._add("aggregator", word)
        elif low in OPERATOR_WORDS:
            self._add("operator", word)
        elif low in KEYWORDS or low in PREPROCESSORS:
            self._add("keyword", word)
        elif low in ("inf", "nan"):
            self._add("number", word)
        elif ":" in word:
            self._add("metric", word)
        else:
            self._add("identifier", word)

    def _number(self) -> None:
        duration = _DURATION.match(self.text, self.at)
        number = _NUMBER.match(self.text, self.at)
        stop = max(match.end() for match in (duration, number) if match)
        tail = re.compile(r"[A-Za-z0-9_.]*").match(self.text, stop)
        if tail and tail.group():
            # A letter that neither numbers nor durations have is not counted in.
            foreign = re.match("[^0-9._eEsmhdwy]", tail.group())
            bad = self.text[self.at : stop if foreign else tail.end()]
            self._fail(f"bad number or duration syntax: {go_quote(bad)}")
        if duration and duration.end() == stop:
            self._add("duration", duration.group())
            return
        text = self.text[self.at : stop]
        if (
            "__" in text
            or text.endswith("_")
            or "_." in text
            or "._" in text
            or "_e" in text.lower()
        ):
            self._fail(f"bad number or duration syntax: {go_quote(text)}")
        self._add("number", text)

    def _string(self, quote: str) -> None:
        start, at = self.at, self.at + 1
        while True:
            if at >= len(self.text) or (quote != "`" and self.text[at] == "\n"):
                kind = "raw string" if quote == "`" else "quoted string"
                self._fail(f"unterminated {kind}", start)
            if self.text[at] == quote:
                break
            at += self._escape(at, quote) if self.text[at] == "\\" and quote != "`" else 1
        raw = self.text[start : at + 1]
        self._add("string", raw, unquoted(raw))

    def _escape(self, at: int, quote: str) -> int:
        """How long the escape sequence at `at` is."""
        mark = self.text[at + 1 : at + 2]
        if not mark:
            self._fail("escape sequence not terminated")
        if mark in _ESCAPES or mark == quote:
            return 2
        widths = {"x": (2, 16, 255), "u": (4, 16, 0x10FFFF), "U": (8, 16, 0x10FFFF)}
        if mark in "01234567":
            width, base, largest, first = 3, 8, 255, at + 1
        elif mark in widths:
            (width, base, largest), first = widths[mark], at + 2
        else:
            self._fail(f"unknown escape sequence U+{ord(mark):04X} '{mark}'")
        digits = self.text[first : first + width]
        for digit in digits:
            if digit not in "0123456789abcdefABCDEF"[: 8 if base == 8 else 22]:
                self._fail(f"illegal character U+{ord(digit):04X} '{digit}' in escape sequence")
        if len(digits) < width:
            self._fail("escape sequence not terminated")
        code = int(digits, base)
        if code > largest or (mark in "uU" and 0xD800 <= code < 0xE000):
            self._fail("escape sequence is an invalid Unicode code point")
        return first + width - at


def _rune(character: str) -> str:
    return "'" + go_quote(character)[1:-1].replace('\\"', '"').replace("'", "\\'") + "'"
