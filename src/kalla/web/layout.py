"""Shared parts of pages: templates and filters, the frame around every page, static files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any, Literal

from fastapi import Request
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from kalla.web.text_format import money, money_text, roughly, seconds, shortened
from kalla.web.tokens.tokens import Caller, Role


@dataclass(frozen=True)
class Place:
    """An entry of the navigation; it is the current one for every path below its own."""

    label: str
    path: str
    below: tuple[str, ...] = ()
    role: Role = "viewer"  # the role that may open it: it is hidden from others

    def holds(self, path: str) -> bool:
        return path == self.path or path.startswith(self.below)


class Layout:
    """Renders pages and fragments from the `templates` folders of the given rooms."""

    def __init__(self, rooms: Sequence[str], places: Sequence[Place]) -> None:
        self._places = tuple(places)
        self._environment = Environment(
            loader=ChoiceLoader([PackageLoader(room) for room in ("kalla.web", *rooms)]),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters |= {
            "moment": moment,
            "seconds": seconds,
            "shortened": shortened,
            "count": count,
            "money": money,
            "money_text": money_text,
            "document": document,
            "prose": prose,
        }
        self._environment.globals |= {"static": static}

    def render(self, template: str, request: Request, **context: Any) -> str:
        """A whole page."""
        caller: Caller | None = getattr(request.state, "caller", None)
        return self._environment.get_template(template).render(
            caller=caller,
            places=[place for place in self._places if caller and caller.may(place.role)],
            path=request.url.path,
            **{"now": None, "live": False} | context,
        )

    def fragment(self, template: str, **context: Any) -> str:
        """A part of a page. Without `now` it changes only with its facts, not with the clock."""
        return self._environment.get_template(template).render(**context)


@pass_context
def moment(
    context: Context, at: datetime | None, style: Literal["ago", "since", "clock"] = "ago"
) -> Markup | str:
    """A point in time; the page's script updates its text as time passes."""
    if at is None:
        return Markup('<span class="none">–</span>')
    at = at.astimezone(UTC)
    exact = f"{at:%Y-%m-%d %H:%M:%S} UTC"
    now: datetime | None = context.get("now")
    words = exact
    if now is not None and style != "clock":
        passed = (now - at).total_seconds()
        words = seconds(abs(passed))
        if style == "ago":
            words = roughly(abs(passed))
            words = f"{words} ago" if passed >= 0 else f"in {words}"
    return Markup('<time datetime="{}" title="{}" data-as="{}">{}</time>').format(
        at.isoformat(timespec="milliseconds"), exact, style, words
    )


def count(value: int) -> str:
    return f"{value:,}"


def document(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def prose(text: str) -> Markup:
    """Text in which `backticks` mark code."""
    parts = text.split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if index % 2 else part
        for index, part in enumerate(parts)
    )


@cache
def static(name: str) -> str:
    """The address of a static file; it changes with the content, so that caches never serve an old
    one.
    """
    content = (files("kalla.web") / "static" / name).read_bytes()
    return f"/static/{name}?v={sha256(content).hexdigest()[:10]}"
