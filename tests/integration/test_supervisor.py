"""Keeping a server running: started again when it ends or sickens, stopped when told."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from kalla.local import ports, supervisor
from kalla.local.program import Program
from kalla.local.supervisor import News, Supervisor
from tests.waiting import until

# Answers 200 on /health, or 503 while the file `sick` is there. Deaf to SIGTERM if told so.
PROGRAM = """
import http.server, pathlib, signal, sys
folder, port, deaf = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503 if (folder / "sick").exists() else 200)
        self.end_headers()
if (folder / "broken").exists():
    sys.exit("error: it is broken")
if deaf:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
http.server.HTTPServer(("127.0.0.1", port), Health).serve_forever()
"""


class Kept(Program):
    def __init__(self, folder: Path, *more: str) -> None:
        port = ports.choose_free()
        super().__init__("kept", [], folder, "127.0.0.1", port, "api.port", 60, watched=True)
        self.call = [sys.executable, "-c", PROGRAM, str(folder), str(self.port), *more]

    def command(self) -> list[str]:
        return self.call


class Story:
    """What a supervisor told, in order."""

    def __init__(self) -> None:
        self.news: list[News] = []

    def has(self, *events: str) -> Callable[[], bool]:
        return lambda: [news.event for news in self.news][: len(events)] == list(events)

    def texts(self) -> list[str]:
        return [news.text for news in self.news if news.event == "trouble"]


@pytest.fixture
def story() -> Story:
    return Story()


@pytest.fixture
def keep(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Kept, Callable[[], bool]], Supervisor]]:
    monkeypatch.setattr(supervisor, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(supervisor, "HEALTH_SECONDS", 0.1)
    monkeypatch.setattr(supervisor, "FIRST_PAUSE", 0.1)
    kept: list[Supervisor] = []

    def begin(server: Kept, hurried: Callable[[], bool] = lambda: True) -> Supervisor:
        kept.append(Supervisor(server, story.news.append, hurried))
        kept[-1].start()
        return kept[-1]

    yield begin
    for each in kept:
        each.leave()
        each.join(30)


Keep = Callable[..., Supervisor]


def test_one_that_is_killed_is_started_again_later_and_later(
    tmp_path: Path, story: Story, keep: Keep
) -> None:
    server = Kept(tmp_path)
    keep(server)
    until(story.has("starting", "ready"), "it is ready")
    assert server.process
    server.process.kill()
    until(story.has("starting", "ready", "trouble", "starting", "ready"), "it is ready again")
    server.process.kill()
    until(lambda: len(story.texts()) == 2, "the second ending is told")
    assert story.texts() == [
        "kept ended (SIGKILL); restarting it in 0.1 s",
        "kept ended (SIGKILL); restarting it in 0.2 s",
    ]


def test_one_that_is_sick_three_times_in_a_row_is_started_again(
    tmp_path: Path, story: Story, keep: Keep
) -> None:
    server = Kept(tmp_path)
    keep(server)
    until(story.has("starting", "ready"), "it is ready")
    assert server.process
    first = server.process.pid
    (tmp_path / "sick").touch()
    until(story.texts, "the sickness is told")
    (tmp_path / "sick").unlink()
    assert story.texts()[0].startswith("kept failed 3 health checks in a row; restarting it in")
    until(story.has("starting", "ready", "trouble", "starting", "ready"), "it is ready again")
    assert server.process.pid != first
    assert not psutil.pid_exists(first)


def test_one_that_cannot_start_again_is_tried_until_it_can(
    tmp_path: Path, story: Story, keep: Keep
) -> None:
    server = Kept(tmp_path)
    keep(server)
    until(story.has("starting", "ready"), "it is ready")
    (tmp_path / "broken").touch()
    assert server.process
    server.process.kill()
    until(lambda: len(story.texts()) >= 2, "the failed start is told")
    (tmp_path / "broken").unlink()
    assert "kept ended while starting (exit code 1): error: it is broken" in story.texts()[1]
    until(lambda: story.news[-1].event == "ready", "it is ready again")


def test_one_that_fails_its_first_start_is_not_tried_again(
    tmp_path: Path, story: Story, keep: Keep
) -> None:
    (tmp_path / "broken").touch()
    failed = keep(Kept(tmp_path))
    failed.join(30)
    assert failed.settled.is_set()
    assert "error: it is broken" in str(failed.failure)
    assert [news.event for news in story.news] == ["starting"]


def test_a_hurry_ends_one_that_does_not_listen(tmp_path: Path, story: Story, keep: Keep) -> None:
    hurry: list[bool] = []
    deaf = keep(Kept(tmp_path, "deaf"), lambda: bool(hurry))
    until(story.has("starting", "ready"), "it is ready")
    deaf.leave()
    until(story.has("starting", "ready", "stopping"), "it is told to stop")
    assert deaf.server.running
    hurry.append(True)
    deaf.join(10)
    assert not deaf.is_alive()
    assert deaf.server.state == "stopped"


def test_one_told_to_leave_while_starting_leaves(tmp_path: Path, story: Story, keep: Keep) -> None:
    (tmp_path / "sick").touch()  # so that it never becomes ready
    waiting = keep(Kept(tmp_path))
    until(lambda: waiting.server.running, "it is starting")
    waiting.leave()
    waiting.join(10)
    assert not waiting.is_alive()
    assert waiting.server.state == "stopped"


@pytest.mark.attack
def test_a_server_that_answers_but_ails_is_started_again(
    tmp_path: Path, story: Story, keep: Callable[[Kept], Supervisor]
) -> None:
    class Ailing(Kept):
        def restart_reason(self) -> str | None:
            ails = b"it ails" in self.written_since_start()
            return "ran a task for too long" if ails else None

    server = Ailing(tmp_path)
    keep(server)
    until(story.has("starting", "ready"), "it is up")
    with server.log.open("ab") as log:
        log.write(b"it ails\n")
    until(story.has("starting", "ready", "trouble", "starting", "ready"), "it is up again")
    assert story.texts() == ["kept ran a task for too long; restarting it in 0.1 s"]
