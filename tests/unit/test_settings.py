"""Settings: which layer wins, where a value came from, and what is said about a wrong one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kalla import settings
from kalla.errors import InvalidSettings
from kalla.settings import Effective, Settings


def load(
    folder: Path, toml: str | None = None, up: str | None = None, **environment: str
) -> Effective:
    return settings.load(environment, _folder(folder, toml, up))


def problems(
    folder: Path, toml: str | None = None, up: str | None = None, **environment: str
) -> dict[str, str]:
    with pytest.raises(InvalidSettings) as caught:
        load(folder, toml, up, **environment)
    return {problem.field: problem.message for problem in caught.value.problems}


def test_without_any_layer_the_defaults_hold(tmp_path: Path) -> None:
    effective = load(tmp_path)
    assert effective.settings.api.port == 3001
    assert effective.origins == {}
    assert {origin for _, _, origin in effective.rows()} == {"default"}


def test_a_slash_behind_the_place_of_uploads_is_none_of_their_urls(tmp_path: Path) -> None:
    uploads = load(tmp_path, KALLA_STORAGE_UPLOADS="s3://bucket/uploads/")
    assert uploads.settings.uploads_url == "s3://bucket/uploads"


def test_later_layers_win_and_each_value_knows_its_origin(tmp_path: Path) -> None:
    effective = settings.load(
        {"KALLA_WORKER_CONCURRENCY": "7"},
        _folder(
            tmp_path,
            toml="[worker]\nport = 5\nconcurrency = 6\n[api]\nport = 1",
            up='[api]\nport = 2\nurl = "http://127.0.0.1:2"',
        ),
        overrides={"log": {"level": "debug"}},
    )
    found = effective.settings
    assert (found.api.url, found.api.port) == ("http://127.0.0.1:2", 1)
    assert (found.worker.port, found.worker.concurrency) == (5, 7)
    assert found.log.level == "debug"
    assert effective.origins == {
        "api.url": f"kalla up ({tmp_path / '.kalla' / 'up.toml'})",
        "api.port": str(tmp_path / "kalla.toml"),
        "worker.port": str(tmp_path / "kalla.toml"),
        "worker.concurrency": "KALLA_WORKER_CONCURRENCY",
        "log.level": "command line",
    }


def test_what_a_running_system_wrote_is_found_in_its_own_data_folder(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "up.toml").write_text('[api]\nurl = "http://127.0.0.1:9"')
    for effective in (
        load(tmp_path, KALLA_DATA_DIR=str(elsewhere)),
        load(tmp_path, toml='data_dir = "elsewhere"'),
    ):
        assert effective.settings.api.url == "http://127.0.0.1:9"
        assert effective.settings.data_dir == elsewhere


def test_a_new_system_ignores_what_the_last_one_left(tmp_path: Path) -> None:
    folder = _folder(tmp_path, up='[a_section_of_an_older_version]\nx = "y"')
    assert settings.load({}, folder, with_running=False).origins == {}


def test_another_file_can_be_named_and_must_exist(tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text("[api]\nport = 4")
    assert load(tmp_path, KALLA_CONFIG=str(other)).settings.api.port == 4
    assert "there is no file" in problems(tmp_path, KALLA_CONFIG="missing.toml")["KALLA_CONFIG"]


def test_job_policies_come_from_the_type_then_from_default(tmp_path: Path) -> None:
    toml = "[jobs.default]\nmax_attempts = 9\ntimeout_seconds = 60\n[jobs.exec]\nmax_attempts = 2"
    found = load(tmp_path, toml, KALLA_JOBS_STAGE_CHUNK_MAX_ATTEMPTS="5").settings
    assert found.policy("exec").max_attempts == 2
    assert found.policy("exec").timeout_seconds == 60
    assert found.policy("stage_chunk").max_attempts == 5
    assert found.policy("anything").max_attempts == 9


def test_roles_are_a_list_with_commas(tmp_path: Path) -> None:
    assert load(tmp_path, KALLA_WORKER_ROLES="exec, sinks").settings.worker.roles == (
        "exec",
        "sinks",
    )
    assert load(
        tmp_path, KALLA_METRICS_FEATURES="extended_ranges, fill_modifiers"
    ).settings.metrics.features == (
        "extended_ranges",
        "fill_modifiers",
    )


def test_an_unknown_name_is_refused_with_the_nearest_known_one(tmp_path: Path) -> None:
    found = problems(
        tmp_path, "[api]\nprt = 1\n[databse]\nurl = 'x'\n[jobs.exec]\nmax_attempt = 1\n"
    )
    assert "did you mean api.port?" in found["api.prt"]
    assert "did you mean database?" in found["databse"]
    assert "did you mean jobs.exec.max_attempts?" in found["jobs.exec.max_attempt"]
    assert all(str(tmp_path / "kalla.toml") in message for message in found.values())


@pytest.mark.parametrize(
    ("variable", "value", "field"),
    [
        ("KALLA_JOBS_EXEC_TIMEOUT_SECONDS", "-1", "jobs.exec.timeout_seconds"),
        ("KALLA_REAPER_INTERVAL_SECONDS", "0", "reaper.interval_seconds"),
        ("KALLA_REAPER_INTERVAL_SECONDS", "nan", "reaper.interval_seconds"),
        ("KALLA_RUN_TOTAL_TIMEOUT_SECONDS", "inf", "run.total_timeout_seconds"),
        ("KALLA_API_PORT", "65536", "api.port"),
        ("KALLA_API_PORT", "http", "api.port"),
        ("KALLA_WORKER_CONCURRENCY", "0", "worker.concurrency"),
        ("KALLA_WORKER_ROLES", "exec,cook", "worker.roles.1"),
        ("KALLA_WAKE_CHANNEL", "pigeon", "wake.channel"),
        ("KALLA_UP_SPARK_MEMORY", "lots", "up.spark_memory"),
        ("KALLA_LIMITS_PAYLOAD_BYTES", "1", "limits.payload_bytes"),
        ("KALLA_STORAGE_TABLES", "s3://kalla/tables", "storage.tables"),
    ],
)
def test_a_wrong_value_names_the_field_and_who_set_it(
    tmp_path: Path, variable: str, value: str, field: str
) -> None:
    message = problems(tmp_path, **{variable: value})[field]
    assert variable in message
    assert "got" in message


def test_every_wrong_value_is_named_at_once(tmp_path: Path) -> None:
    found = problems(
        tmp_path, "[api]\nport = -1\n[worker]\nconcurrency = 0", KALLA_LOG_LEVEL="loud"
    )
    assert found.keys() == {"api.port", "worker.concurrency", "log.level"}


def test_a_broken_file_is_named_with_the_line(tmp_path: Path) -> None:
    [(field, message)] = problems(tmp_path, "[api]\nport = = 1\n").items()
    assert field == str(tmp_path / "kalla.toml")
    assert "not valid TOML" in message
    assert "line 2" in message


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "kalla.toml").write_bytes(b"\xff\xfe")
    [(field, message)] = problems(tmp_path).items()
    assert field == str(tmp_path / "kalla.toml")
    assert "cannot be read" in message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_another_users_data_folder_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / ".kalla").mkdir(mode=0o000)
    assert "cannot be read" in problems(tmp_path)[str(tmp_path / ".kalla" / "up.toml")]


def test_a_variable_that_kubernetes_made_for_a_service_is_explained(tmp_path: Path) -> None:
    message = problems(tmp_path, KALLA_API_PORT="tcp://10.0.0.1:3001")["api.port"]
    assert "enableServiceLinks: false" in message
    assert "KALLA_API_PORT" in message


def test_variables_that_name_no_setting_are_listed(tmp_path: Path) -> None:
    effective = load(
        tmp_path, KALLA_API_SERVICE_HOST="10.0.0.1", KALLA_COLOUR="red", KALLA_JOBS_="1", HOME="/"
    )
    assert effective.ignored == ("KALLA_API_SERVICE_HOST", "KALLA_COLOUR", "KALLA_JOBS_")


@pytest.mark.parametrize(
    ("toml", "field"),
    [
        ("[jobs.exec]\nheartbeat_interval = 10\ntimeout_seconds = 15", "jobs.exec"),
        ("[jobs.default]\nheartbeat_interval = 10", "jobs.default"),
        ("[leases]\nttl_seconds = 5", "leases.ttl_seconds"),
        ("[scaling]\nmin_workers = 9\nmax_workers = 3", "scaling.min_workers"),
    ],
)
def test_values_that_do_not_fit_together_are_refused(tmp_path: Path, toml: str, field: str) -> None:
    assert any(name.startswith(field) for name in problems(tmp_path, toml))


def test_no_secret_is_ever_printed(tmp_path: Path) -> None:
    effective = load(
        tmp_path,
        KALLA_DATABASE_URL="postgresql://kalla:hunter2@db.example:5432/kalla?password=hunter2",
        KALLA_WAKE_NATS_URL="nats://hunter2@nats.example:4222",
        KALLA_API_TOKEN="hunter2",
        KALLA_SPARK_TOKEN="hunter2",
    )
    printed = json.dumps(list(effective.rows()))
    assert "hunter2" not in printed
    assert "hunter2" not in repr(effective.settings)
    # What is not secret stays, or nobody could tell which server is meant.
    assert "postgresql://kalla:***@db.example:5432/kalla" in printed
    assert "nats.example:4222" in printed


def test_no_secret_is_repeated_by_an_error(tmp_path: Path) -> None:
    text = json.dumps(problems(tmp_path, "[api]\ntoken = 1234567\n[database]\nurl = 1234567"))
    assert "1234567" not in text


def test_every_setting_has_a_description() -> None:
    def nameless(model: type[settings.Section], path: str) -> list[str]:
        found = []
        for name, info in model.model_fields.items():
            if isinstance(info.annotation, type) and issubclass(info.annotation, settings.Section):
                found += nameless(info.annotation, f"{path}{name}.")
            elif not info.description:
                found.append(path + name)
        return found

    assert nameless(Settings, "") == []


def _folder(folder: Path, toml: str | None = None, up: str | None = None) -> Path:
    if toml is not None:
        (folder / "kalla.toml").write_text(toml)
    if up is not None:
        (folder / ".kalla").mkdir(exist_ok=True)
        (folder / ".kalla" / "up.toml").write_text(up)
    return folder
