"""Everything that can be configured, typed, in one place, with where each value came from.

Later layers win: defaults, what a running `kalla up` wrote, kalla.toml, KALLA_* variables.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator

from kalla.errors import InvalidSettings, Problem
from kalla.redaction import MASK, scrub

Role = Literal["stage", "exec", "refresh", "compact", "sinks"]
ROLES: tuple[Role, ...] = ("stage", "exec", "refresh", "compact", "sinks")

Seconds = Annotated[float, Field(gt=0)]
Port = Annotated[int, Field(ge=0, le=65535)]


class Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False
    )


class Database(Section):
    url: SecretStr = Field(
        SecretStr("postgresql://postgres@127.0.0.1:54329/kalla"),
        description="where the state lives",
    )
    pool_size: int = Field(8, ge=2, description="connections a process keeps at the most")
    connect_timeout: Seconds = Field(5, description="seconds to wait for a connection")


class Wake(Section):
    channel: Literal["nats", "postgres"] = Field("nats", description="what wakes idle workers")
    nats_url: SecretStr = Field(
        SecretStr("nats://127.0.0.1:42229"), description="NATS with JetStream"
    )
    poll_seconds: Seconds = Field(
        2, description="how often an idle worker looks without being woken"
    )
    sync_seconds: Seconds = Field(3, description="how often the stream's depth is set right")


class Api(Section):
    host: str = Field("127.0.0.1", description="address the API binds to")
    port: Port = Field(3001, description="port of the API and the pages")
    metrics_port: Port = Field(9089, description="port of the API's own /metrics and /ready")
    url: str = Field("http://127.0.0.1:3001", description="where the command line finds the API")
    token: SecretStr = Field(
        SecretStr(""), description="the token the command line shows to the API"
    )


class Worker(Section):
    host: str = Field("127.0.0.1", description="address of /metrics, /health and /ready")
    port: Port = Field(9090, description="port of /metrics, /health and /ready; 0 takes a free one")
    concurrency: int = Field(4, ge=1, le=1000, description="jobs a worker runs at once")
    roles: tuple[Role, ...] = Field(
        ROLES, min_length=1, description="the kinds of work a worker takes"
    )
    drain_seconds: Seconds = Field(
        20, description="after SIGTERM, how long current jobs may still finish"
    )
    stuck_seconds: Seconds = Field(
        60, description="how long a thread may outlive its lost job before /health says so"
    )


class JobPolicy(Section):
    timeout_seconds: float = Field(
        12, gt=0, description="without a heartbeat for so long, a job is lost"
    )
    heartbeat_interval: float = Field(3, gt=0, description="seconds between a job's heartbeats")
    max_runtime_seconds: float = Field(
        6 * 3600, gt=0, description="a job that runs longer is taken away, heartbeats or not"
    )
    max_attempts: int = Field(3, ge=1, le=1000, description="failures after which a job has failed")
    backoff_seconds: float = Field(
        2, ge=0, description="wait before the second attempt; doubles each time"
    )
    backoff_limit_seconds: float = Field(300, ge=0, description="the longest wait between attempts")


class Reaper(Section):
    interval_seconds: Seconds = Field(
        2, description="seconds between looks for lost jobs and late runs"
    )


class Scheduler(Section):
    interval_seconds: Seconds = Field(1, description="seconds between looks for jobs that came due")


class Run(Section):
    total_timeout_seconds: Seconds = Field(
        24 * 3600, description="a run that takes longer has failed"
    )


class Retention(Section):
    finished_seconds: Seconds = Field(
        7 * 24 * 3600, description="how long finished jobs and runs are kept"
    )
    idempotency_seconds: Seconds = Field(
        24 * 3600, description="how long an Idempotency-Key is remembered"
    )
    interval_seconds: Seconds = Field(60, description="seconds between clean-ups")


class Leases(Section):
    ttl_seconds: Seconds = Field(15, description="how long a slot is held without renewal")
    renew_seconds: Seconds = Field(4, description="seconds between renewals")
    margin_seconds: Seconds = Field(2, description="a holder stops so long before its lease ends")


class Limits(Section):
    payload_bytes: int = Field(262_144, ge=1024, description="largest payload of a job, as JSON")


class Spark(Section):
    remote: str = Field("sc://localhost:15002", description="the Spark Connect server")
    token: SecretStr = Field(SecretStr(""), description="the Connect server's token")


class Staging(Section):
    chunk_threshold_rows: int = Field(
        250_000, ge=1, description="a table of more rows is staged in several chunks"
    )
    max_parallel_chunks: int = Field(
        16, ge=1, le=10_000, description="chunks a source is cut into at the most"
    )


class Storage(Section):
    evidence: str = Field("", description="folder or s3:// of the evidence; empty: in data_dir")
    staging: str = Field("", description="folder or s3:// of staged rows; empty: in data_dir")
    work: str = Field(
        "", description="folder that workers and Spark share while they match; empty: in data_dir"
    )
    metrics: str = Field("", description="folder or s3:// of metric segments; empty: in data_dir")
    s3_endpoint: str = Field("", description="address of an S3 that is not Amazon's")
    s3_region: str = Field("us-east-1", description="region of the buckets")
    s3_access_key: SecretStr = Field(SecretStr(""), description="empty: as the machine is set up")
    s3_secret_key: SecretStr = Field(SecretStr(""), description="belongs to s3_access_key")

    @field_validator("evidence", "staging", "work", "metrics")
    @classmethod
    def _plain(cls, place: str) -> str:
        if "://" in place and not place.startswith("s3://"):
            raise ValueError("must be a folder or s3://")
        return place


class Secrets(Section):
    key: SecretStr = Field(
        SecretStr(""), description="key of the encrypted store, 32 bytes in base64"
    )
    folder: str = Field("", description="a folder with a file for each secret, as mounted")


class Matching(Section):
    memory: str = Field(
        "2GB", pattern=r"^\d+(\.\d+)?[KMG]B$", description="memory of a match task, then it spills"
    )
    threads: int = Field(2, ge=1, description="threads of a match task")
    buckets: int = Field(
        0, ge=0, le=10_000, description="tasks a match is spread over; 0: by the data and the cores"
    )


class Metrics(Section):
    shards: int = Field(
        4, ge=1, le=1024, description="parts that series are spread over; fixed once there are data"
    )
    commit_seconds: Seconds = Field(
        0.1, description="least time between two commits of samples that are written"
    )
    out_of_order_seconds: Seconds = Field(
        24 * 3600, description="how far behind the newest sample a written one may be"
    )
    retention_seconds: float = Field(
        0, ge=0, description="how far behind the newest sample others are kept; 0: for ever"
    )
    compact_seconds: Seconds = Field(
        30, description="seconds between looks for segments to compact or remove"
    )
    grace_seconds: Seconds = Field(
        600, description="how long replaced segments stay, for queries that still read them"
    )
    cache_bytes: int = Field(
        512 << 20, ge=0, description="memory for segments that were read before"
    )
    write_bytes: int = Field(32 << 20, ge=1024, description="largest body of a remote write")
    query_seconds: Seconds = Field(120, description="a query that takes longer is ended")
    query_samples: int = Field(50_000_000, ge=1, description="samples a query may hold at once")
    query_series: int = Field(1_000_000, ge=1, description="series a query's step may have")
    query_bytes: int = Field(2 << 30, ge=1 << 20, description="memory a query's step may take")
    query_concurrency: int = Field(4, ge=1, description="queries that an API runs at once")
    query_threads: int = Field(2, ge=1, description="threads of a query")


class Log(Section):
    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="least level shown"
    )
    format: Literal["json", "text"] = Field(
        "json", description="one JSON object a line, or plain text"
    )


class Up(Section):
    workers: int = Field(2, ge=1, le=64, description="workers that `kalla up` starts")
    postgres_port: Port = Field(54329, description="port of the embedded Postgres")
    nats_port: Port = Field(42229, description="port of the embedded NATS")
    spark_port: Port = Field(15002, description="port of the embedded Spark Connect server")
    spark_cores: int = Field(2, ge=1, description="cores of the embedded Spark")
    spark_memory: str = Field(
        "2g", pattern=r"^\d+[mg]$", description="memory of the embedded Spark"
    )
    min_free_bytes: int = Field(1 << 30, ge=0, description="free disk space `kalla up` asks for")


class Settings(Section):
    data_dir: Path = Field(Path(".kalla"), description="data of this machine's embedded servers")
    database: Database = Database()
    wake: Wake = Wake()
    api: Api = Api()
    worker: Worker = Worker()
    jobs: dict[str, JobPolicy] = Field(
        {}, description="policies by job type; `default` is for the rest"
    )
    reaper: Reaper = Reaper()
    scheduler: Scheduler = Scheduler()
    run: Run = Run()
    retention: Retention = Retention()
    leases: Leases = Leases()
    limits: Limits = Limits()
    spark: Spark = Spark()
    staging: Staging = Staging()
    storage: Storage = Storage()
    secrets: Secrets = Secrets()
    matching: Matching = Matching()
    metrics: Metrics = Metrics()
    log: Log = Log()
    up: Up = Up()

    @property
    def staging_url(self) -> str:
        return self.storage.staging or str(self.data_dir / "staging")

    @property
    def work_folder(self) -> Path:
        return Path(self.storage.work or self.data_dir / "work")

    @property
    def evidence_url(self) -> str:
        return self.storage.evidence or str(self.data_dir / "evidence")

    @property
    def metrics_url(self) -> str:
        return self.storage.metrics or str(self.data_dir / "metrics")

    def policy(self, job_type: str) -> JobPolicy:
        """A type's own policy over the one named `default`, over the built-in one."""
        merged: dict[str, Any] = {}
        for name in ("default", job_type):
            if name in self.jobs:
                merged |= self.jobs[name].model_dump(exclude_unset=True)
        return JobPolicy(**merged)


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
    if problems:
        raise InvalidSettings(*problems)


def _is_there(path: Path) -> bool:
    try:
        return path.is_file()
    except PermissionError:
        return True  # reading it will say so in a sentence


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
        target[path[-1]] = _split(text) if path == ("worker", "roles") else text
        variables[".".join(path)] = variable
    return values, variables, tuple(sorted(ignored))


def _path_of(name: str) -> tuple[str, ...] | None:
    """jobs_stage_chunk_max_attempts is jobs.stage_chunk.max_attempts, and so on."""
    if name == "data_dir":
        return ("data_dir",)
    section, _, field = name.partition("_")
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
            yield Problem(name, f"there is no such setting{_nearest(name)}{where}")
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
