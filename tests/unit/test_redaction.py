"""Redaction: what looks like a secret is masked, wherever it stands (trap 17)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kalla.redaction import MASK, is_secret_name, scrub, scrub_value, secrets_in

TOKEN = "kalla_" + "aB3-_" * 8 + "xYz"  # as long as those that are made
# Letters that occur in no mask, name or address below, so that a leak cannot hide.
PASSWORDS = st.text(alphabet="XYZ0189!$%^*+-_.~'", min_size=4, max_size=40)


@given(PASSWORDS, st.sampled_from(["postgresql", "mysql+pymysql", "nats", "https", "s3"]))
def test_the_password_in_an_address_is_masked(password: str, scheme: str) -> None:
    text = scrub(f"cannot reach {scheme}://user:{password}@host:1/db now")
    assert text == f"cannot reach {scheme}://user:{MASK}@host:1/db now"


@given(PASSWORDS)
def test_a_password_with_an_at_sign_is_masked_whole(password: str) -> None:
    assert scrub(f"a://u:{password}@{password}@host") == f"a://u:{MASK}@host"


@given(
    st.sampled_from(["password", "DB_PASSWORD", "api-key", "x-token", "client_secret", "passwd"]),
    st.sampled_from(["{}={}", "{}: {}", '"{}": "{}"', "{}='{}'", '\\"{}\\": \\"{}\\"', "{} = {}"]),
    st.text(alphabet="XYZ0189!$%^*+-_.~", min_size=4, max_size=40),
)
def test_a_value_behind_a_secret_name_is_masked(name: str, shape: str, secret: str) -> None:
    text = scrub("before " + shape.format(name, secret) + " after")
    assert secret not in text
    assert name in text
    assert text.startswith("before ")
    assert text.endswith(" after")


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("Authorization: Bearer abcdefgh12345", f"Authorization: Bearer {MASK}"),
        (f"token {TOKEN}", f"token kalla_{MASK}"),
        ("nats://s3cr3tt0k3n@host:4222", f"nats://{MASK}@host:4222"),
        ("redis://:pw@host", f"redis://:{MASK}@host"),
        ('{"password": "two words"}', f'{{"password": {MASK}}}'),
        ("http://host/login?token=abc&next=/", f"http://host/login?token={MASK}&next=/"),
        ("host=h password=abc dbname=d", f"host=h password={MASK} dbname=d"),
    ],
)
def test_each_way_to_write_a_secret_is_known(text: str, masked: str) -> None:
    assert scrub(text) == masked


@pytest.mark.parametrize(
    "text",
    [
        "",
        "job 17 failed: division by zero",
        "postgresql://user@host:5432/db",
        "http://127.0.0.1:3001/api/jobs?status=failed",
        "password=secret://warehouse",
        'token="secret://kafka"',
        "FATAL:  password authentication failed for user",
        "ratio 3:4 @ noon",
        "/data/kalla_reconciliation_results.csv does not exist",
        "sources.right.password: there is no secret 'missing': set KALLA_SECRET_MISSING",
        "sources.right.password: is another secret than the registered source's",
        "sources.right.password: must name a secret (store it and write secret://name)",
        "uri: must not contain a password: name a secret instead",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert scrub(text) == text


@pytest.mark.parametrize("shape", ["password: {}", "password={}", "password:  {}", '"token": "{}"'])
@pytest.mark.parametrize(
    "secret", ["there", "is", "must-name-a-secret", "must.be.text", "isanother", "namea"]
)
def test_a_value_that_begins_as_a_sentence_does_is_masked(shape: str, secret: str) -> None:
    assert secret not in scrub(shape.format(secret) + " or not")


@pytest.mark.parametrize("head", ["password=", "password:", "password = ", "password:\n"])
def test_a_sentence_is_one_only_where_kalla_puts_it(head: str) -> None:
    assert MASK in scrub(f"{head}must name a secret")


@given(st.text())
def test_scrubbing_twice_changes_nothing_more(text: str) -> None:
    once = scrub(text)
    assert scrub(once) == once


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "unit", ["a", "a-", "://", "://a:", "password", 'password="', "bearer ", "token: ", "nats://"]
)
def test_a_long_text_does_not_hang(unit: str) -> None:
    scrub(unit * (300_000 // len(unit)))


def test_structures_are_masked_by_name_and_by_looks() -> None:
    document = {
        "password": "abc",
        "nested": [{"api_key": "abc", "note": "a://u:abc@h"}],
        "named": {"token": "secret://kafka"},
        "count": 3,
        "empty_password": "",
    }
    assert scrub_value(document) == {
        "password": MASK,
        "nested": [{"api_key": MASK, "note": f"a://u:{MASK}@h"}],
        "named": {"token": "secret://kafka"},
        "count": 3,
        "empty_password": "",
    }


def test_a_sentence_about_bearers_holds_no_secret_and_a_header_does() -> None:
    assert not list(secrets_in("Bearer certificates of May"))
    assert list(secrets_in("Bearer abcdefgh12345"))


def test_secrets_in_a_document_are_found_with_their_path() -> None:
    document = {
        "source": {"uri": "postgresql://u:abc@h/d", "password": "secret://warehouse"},
        "targets": [{"token": "abc"}, {"note": TOKEN}],
        "plain": "nothing",
        "file": "/data/kalla_reconciliation_results.csv",
        "folder": "s3://b/kalla_payments_export_2026_with_all_that_came_after_the_close/x.csv",
    }
    assert sorted(secrets_in(document)) == ["source.uri", "targets[0].token", "targets[1].note"]


LEAKS = st.sampled_from(["a://u:XYZZY@h", "nats://XYZZY@h", "see token=XYZZY", "Bearer XYZZYXYZZY"])
BY_NAME = st.dictionaries(st.sampled_from(["password", "apiKey", "DB_SECRET"]), st.just("XYZZY"))


@given(
    st.recursive(
        LEAKS | BY_NAME | st.integers() | st.none(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=10), inner),
        max_leaves=20,
    )
)
def test_a_secret_is_masked_however_deep_it_stands(document: object) -> None:
    assert "XYZZY" not in repr(scrub_value(document))


def test_names_of_secrets_are_told_from_others() -> None:
    assert all(map(is_secret_name, ["password", "DB_PASSWD", "aws_access_key", "private-key"]))
    assert not any(map(is_secret_name, ["name", "path", "primary_key", "keyboard", "queue"]))
