"""Which addresses a destination covers: one server, one path and what is below, no tricks."""

from __future__ import annotations

import pytest

from kalla.reconcile.registry.destinations import covers, url_problems
from kalla.redaction import scrub

HOOKS = "https://ledger.example/hooks"


@pytest.mark.parametrize(
    "asked",
    [
        HOOKS,
        "https://ledger.example/hooks/",
        "https://ledger.example/hooks/may",
        "https://ledger.example/hooks/may?run=1&x=//../",
        "https://LEDGER.example:443/hooks",
        "https://ledger.example/hooks/..may",
    ],
)
def test_what_is_below_is_covered(asked: str) -> None:
    assert covers(HOOKS, asked)
    assert covers(HOOKS + "/", asked)


@pytest.mark.parametrize(
    "asked",
    [
        "http://ledger.example/hooks",
        "https://ledger.example/hooksmith",
        "https://ledger.example/",
        "https://ledger.example/Hooks",
        "https://ledger.example:8443/hooks",
        "https://ledger.example.evil.example/hooks",
        "https://evil.example/hooks",
        "https://evil.example/https://ledger.example/hooks",
        "https://ledger.example@evil.example/hooks",
        "https://ledger.example:443@evil.example/hooks",
        "https://ledger.example\\@evil.example/hooks",
        "https://evil.example#@ledger.example/hooks",
        "https://ledger.example/hooks/../admin",
        "https://ledger.example/hooks/%2e%2e/admin",
        "https://ledger.example/hooks/%2E./admin",
        "https://ledger.example/hooks/..%2fadmin",
        "https://ledger.example/hooks/..%5cadmin",
        "https://ledger.example/hooks/..;/admin",
        "https://ledger.example/hooks//x",
        "https://ledger.example/hooks/\n",
        "https://ledger.example/hooks/\r\nHost: evil.example",
        "https://ledger.example/hooks/a b",
        "https://ledger.example/hooks#x",
        "https://ledger.example/hooks/\0",
        "https://ledger.example/hooks/\ud800",
        "https://ledger．example/hooks",
        "//ledger.example/hooks",
        "ledger.example/hooks",
        "file:///hooks",
        "https:///hooks",
        "",
        HOOKS + "/" + "x" * 3000,
    ],
)
def test_everything_else_is_not(asked: str) -> None:
    assert not covers(HOOKS, asked)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "[::1]"])
def test_http_is_for_this_machine_alone(host: str) -> None:
    assert not list(url_problems(f"http://{host}:8080/hooks"))
    assert covers(f"http://{host}:8080", f"http://{host}:8080/hooks")
    assert not covers(f"http://{host}:8080", f"http://{host}:8081/hooks")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://10.0.0.1/hooks", "must be https"),
        ("http://localhost.evil.example/hooks", "must be https"),
        ("http://127.0.0.1.evil.example/hooks", "must be https"),
        ("http://2130706433/hooks", "must be https"),
        ("https://ledger.example:0/hooks", "port"),
        ("https://ledger.example:70000/hooks", "port"),
        ("https://ann:hunter2@ledger.example/hooks", "without a user"),
        ("https://ledger.example/hooks?x=1", "no query"),
        ("https://ledger.example/a/../b", "plain path"),
        ("gopher://ledger.example", "must be like https://host/path"),
    ],
)
def test_an_address_that_cannot_be_registered_says_why(url: str, words: str) -> None:
    messages = [each.message for each in url_problems(url)]
    assert len(messages) == 1
    assert words in messages[0]
    assert "hunter2" not in messages[0]


@pytest.mark.parametrize("query", ["token=x", "run=1&api_key=x", "API%5Fkey=x", "password"])
def test_a_query_that_carries_a_secret_is_refused(query: str) -> None:
    (problem,) = url_problems(f"{HOOKS}?{query}", query=True)
    assert "the destination's secret signs every call" in problem.message
    assert not covers(HOOKS, f"{HOOKS}?{query}")


def test_what_is_said_of_a_secret_in_a_query_is_not_taken_for_one() -> None:
    (problem,) = url_problems(f"{HOOKS}?token=hunter2", query=True)
    assert scrub(str(problem)) == str(problem)
    assert "hunter2" not in str(problem)
