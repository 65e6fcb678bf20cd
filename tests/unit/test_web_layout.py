"""What pages share: times, counts, prose, and which entry of the navigation is the current one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from jinja2 import DictLoader

from kalla.web.layout import Layout, Place, count, document, prose, static

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def layout() -> Layout:
    return Layout([], [])


def rendered(layout: Layout, template: str, **context: object) -> str:
    environment = layout._environment
    environment.loader = DictLoader({"t": template})
    return layout.fragment("t", **context)


def test_without_now_a_moment_depends_on_the_fact_alone(layout: Layout) -> None:
    html = rendered(layout, "{{ at | moment }}", at=NOW, now=None)
    assert html == rendered(layout, "{{ at | moment }}", at=NOW, now=None)
    assert 'datetime="2026-01-02T03:04:05.000+00:00"' in html
    assert "2026-01-02 03:04:05 UTC</time>" in html


@pytest.mark.parametrize(
    ("after", "style", "words"),
    [(65, "ago", "1 min ago"), (65, "since", "1 min 5 s"), (-30, "ago", "in 30 s")],
)
def test_with_now_a_moment_is_in_words(layout: Layout, after: int, style: str, words: str) -> None:
    now = NOW + timedelta(seconds=after)
    html = rendered(layout, "{{ at | moment(style) }}", at=NOW, now=now, style=style)
    assert f">{words}</time>" in html


def test_no_moment_is_a_dash(layout: Layout) -> None:
    assert "–" in rendered(layout, "{{ at | moment }}", at=None, now=NOW)


def test_everything_is_escaped(layout: Layout) -> None:
    hostile = "<script>`<b>`"
    assert "<script>" not in rendered(layout, "{{ text }}", text=hostile)
    assert prose(hostile) == "&lt;script&gt;<code>&lt;b&gt;</code>"
    assert "<b>" not in rendered(layout, "{{ value | document }}", value={"<b>": "<b>"})


def test_a_misspelt_name_in_a_template_is_an_error(layout: Layout) -> None:
    with pytest.raises(Exception, match="'misspelt' is undefined"):
        rendered(layout, "{{ misspelt }}")


def test_thousands_are_grouped() -> None:
    assert count(1234567) == "1,234,567"


def test_documents_keep_their_letters() -> None:
    assert document({"a": "ä"}) == '{\n  "a": "ä"\n}'


def test_a_static_address_changes_with_the_content() -> None:
    assert static("kalla.css").startswith("/static/kalla.css?v=")
    assert static("kalla.css") != static("kalla.js")


def test_a_place_is_current_for_what_is_below_it() -> None:
    work = Place("Work", "/", below=("/jobs/",))
    assert work.holds("/")
    assert work.holds("/jobs/3")
    assert not work.holds("/docs")
