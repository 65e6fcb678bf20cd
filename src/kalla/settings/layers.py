"""Where settings come from: defaults, what a running `kalla up` wrote, kalla.toml, KALLA_*.

Later layers win, and each value remembers which one set it.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr, ValidationError

from kalla.errors import InvalidSettings, Problem
from kalla.redaction import MASK, scrub
from kalla.settings.sections import JobPolicy, QueryWorker, Section, Settings


@dataclass(frozen=True)
class Effective:
    """The settings in force, and for each dotted name the layer that set it."""

    settings: Settings
    origins: Mapping[str, str]
    ignored: tuple[str, ...]  # KALLA_* variables that name no setting

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """(name, printable value, origin) of every setting; secrets are masked."""
        for name, value in _leaves(self.settings):
            yield name, _printable(value), self.origins.get(name) or self._inherited(name)

    def _inherited(self, name: str) -> str:
        """A job type that does not say takes what jobs.default says."""
        field = name.rpartition(".")[2] if name.startswith("jobs.") else ""
        return self.origins.get(f"jobs.default.{field}", "default")


def load(
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    with_running: bool = True,
) -> Effective:
    """Read every layer, or raise InvalidSettings naming each field that is wrong.

    `with_running` is for all but `kalla up` itself: what its predecessor wrote is nothing to it.
    """
    environment = os.environ if environment is None else environment
    directory = Path.cwd() if directory is None else directory
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}

    config = Path(environment.get("KALLA_CONFIG", directory / "kalla.toml"))
    if "KALLA_CONFIG" in environment and not config.is_file():
        raise InvalidSettings(Problem("KALLA_CONFIG", f"there is no file {config}"))
    from_file = _read_toml(config) if config.is_file() else {}
    from_environment, variables, ignored = _read_environment(environment)

    data_dir = from_environment.get("data_dir", from_file.get("data_dir", ".kalla"))
    running = directory / str(data_dir) / "up.toml"
    if with_running and _is_there(running):
        _merge(merged, _read_toml(running), origins, lambda _: f"kalla up ({running})")
    _merge(merged, from_file, origins, lambda _: str(config))
    _merge(merged, from_environment, origins, variables.__getitem__)
    _merge(merged, dict(overrides or {}), origins, lambda _: "command line")

    try:
        settings = Settings.model_validate(merged)
    except ValidationError as error:
        raise InvalidSettings(*_problems(error, origins)) from None
    settings = settings.model_copy(update={"data_dir": (directory / settings.data_dir).resolve()})
    _check_together(settings)
    return Effective(settings, origins, ignored)


def _check_together(settings: Settings) -> None:
    problems = []
    for name in {"default", *settings.jobs}:
        policy = settings.policy(name)
        if policy.heartbeat_interval * 2 > policy.timeout_seconds:
            problems.append(
                Problem(
                    f"jobs.{name}.heartbeat_interval",
                    f"{policy.heartbeat_interval:g} s is too long for timeout_seconds = "
                    f"{policy.timeout_seconds:g}: two heartbeats must fit into one timeout",
                )
            )
    leases = settings.leases
    if leases.renew_seconds + leases.margin_seconds >= leases.ttl_seconds:
        problems.append(
            Problem(
                "leases.ttl_seconds",
                "must be longer than renew_seconds and margin_seconds together",
            )
        )
    scaling = settings.scaling
    if scaling.min_workers > scaling.max_workers:
        problems.append(
            Problem(
                "scaling.min_workers",
                f"{scaling.min_workers} is more than max_workers = {scaling.max_workers}",
            )
        )
    if problems:
        raise InvalidSettings(*problems)


def _is_there(path: Path) -> bool:
    try:
        return path.is_file()
    except PermissionError:
        return True  # reading it will say so in a sentence


_LISTS = frozenset({("worker", "roles"), ("metrics", "features")})


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise InvalidSettings(Problem(str(path), f"is not valid TOML: {error}")) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSettings(Problem(str(path), f"cannot be read: {error}")) from None


def _read_environment(
    environment: Mapping[str, str],
) -> tuple[dict[str, Any], dict[str, str], tuple[str, ...]]:
    values: dict[str, Any] = {}
    variables: dict[str, str] = {}
    ignored = []
    for variable, text in environment.items():
        if not variable.startswith("KALLA_") or variable == "KALLA_CONFIG":
            continue
        path = _path_of(variable.removeprefix("KALLA_").lower())
        if path is None:
            ignored.append(variable)
            continue
        target = values
        for name in path[:-1]:
            target = target.setdefault(name, {})
        target[path[-1]] = _split(text) if path in _LISTS else text
        variables[".".join(path)] = variable
    return values, variables, tuple(sorted(ignored))


def _path_of(name: str) -> tuple[str, ...] | None:
    """jobs_stage_chunk_max_attempts is jobs.stage_chunk.max_attempts, and so on."""
    if name == "data_dir":
        return ("data_dir",)
    section, _, field = name.partition("_")
    if name.startswith("query_worker_"):  # the one section of two words; `query` is another
        worker_field = name.removeprefix("query_worker_")
        if worker_field in QueryWorker.model_fields:
            return ("query_worker", worker_field)
    if section == "jobs":
        for known in JobPolicy.model_fields:
            job_type = field.removesuffix(f"_{known}")
            if job_type and job_type != field:
                return ("jobs", job_type, known)
        return None
    info = Settings.model_fields.get(section)
    if (
        info is None
        or not isinstance(info.annotation, type)
        or not issubclass(info.annotation, Section)
    ):
        return None
    return (section, field) if field in info.annotation.model_fields else None


def _merge(
    target: dict[str, Any],
    layer: Mapping[str, Any],
    origins: dict[str, str],
    origin: Any,
    path: str = "",
) -> None:
    for name, value in layer.items():
        dotted = f"{path}.{name}" if path else name
        if isinstance(value, Mapping):
            below = target.setdefault(name, {})
            if isinstance(below, dict):
                _merge(below, value, origins, origin, dotted)
                continue
        target[name] = value
        origins[dotted] = origin(dotted)


def _problems(error: ValidationError, origins: Mapping[str, str]) -> Iterator[Problem]:
    for item in error.errors(include_url=False):
        name = ".".join(str(part) for part in item["loc"])
        origin = origins.get(name) or origins.get(name.rpartition(".")[0]) or _below(name, origins)
        where = f" (set by {origin})" if origin else ""
        if item["type"] == "extra_forbidden":
            yield Problem(name, f"this setting does not exist{_nearest(name)}{where}")
            continue
        message = item["msg"]
        given = item.get("input")
        if (
            isinstance(given, str | int | float | bool)
            and "token" not in name
            and "url" not in name
        ):
            message += f", got {given!r}"
            if str(given).startswith("tcp://"):
                message += (
                    "; Kubernetes made this variable for a Service: set enableServiceLinks: false"
                )
        yield Problem(name, message + where)


def _below(section: str, origins: Mapping[str, str]) -> str:
    return next((text for name, text in origins.items() if name.startswith(f"{section}.")), "")


def _nearest(name: str) -> str:
    leaves = [leaf for leaf, _ in _leaves(Settings())] if "." in name else [*Settings.model_fields]
    known = leaves + [
        f"jobs.{name.split('.')[1]}.{field}"
        for field in JobPolicy.model_fields
        if name.count(".") == 2
    ]
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _leaves(section: BaseModel, path: str = "") -> Iterator[tuple[str, Any]]:
    for name in type(section).model_fields:
        value = getattr(section, name)
        dotted = f"{path}.{name}" if path else name
        if isinstance(value, BaseModel):
            yield from _leaves(value, dotted)
        elif isinstance(section, Settings) and name == "jobs":
            for job_type in sorted({"default", *section.jobs}):
                yield from _leaves(section.policy(job_type), f"{dotted}.{job_type}")
        else:
            yield dotted, value


def _printable(value: Any) -> str:
    if isinstance(value, SecretStr):
        text = value.get_secret_value()
        return scrub(text) if not text or "://" in text else MASK
    return scrub(",".join(value) if isinstance(value, tuple) else str(value))
