"""The sections of the settings: every value there is, its type, its default, what it means."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    SecretStr,
    field_validator,
)

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
    pool_size: int = Field(8, ge=2, description="maximum number of connections of a process")
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
    metrics_host: str = Field(
        "127.0.0.1", description="address of the API's own /metrics and /ready, which ask no token"
    )
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
        6 * 3600, gt=0, description="longest run time of a job, even if it sends heartbeats"
    )
    max_attempts: int = Field(3, ge=1, le=1000, description="failures after which a job has failed")
    backoff_seconds: float = Field(
        2, ge=0, description="wait before the second attempt; doubles each time"
    )
    backoff_limit_seconds: float = Field(300, ge=0, description="the longest wait between attempts")
    unavailable_seconds: float = Field(
        300, ge=0, description="seconds that a server may be unreachable before that is a failure"
    )


class Reaper(Section):
    interval_seconds: Seconds = Field(
        2, description="seconds between checks for lost jobs and late runs"
    )


class Scheduler(Section):
    interval_seconds: Seconds = Field(
        1, description="seconds between checks for jobs that came due"
    )


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
    margin_seconds: Seconds = Field(2, description="seconds before its end when a holder stops")


class Sinks(Section):
    reconcile_seconds: Seconds = Field(
        5, description="seconds between checks of the wanted pipelines"
    )
    lease_ttl_seconds: Seconds = Field(
        20, description="how long a slot of a pipeline is held without renewal"
    )
    replicas_per_worker: int = Field(8, ge=1, description="maximum number of slots of a worker")
    insert_seconds: Seconds = Field(
        10, description="an insert that takes longer is refused by ClickHouse"
    )
    idle_seconds: Seconds = Field(0.5, description="how long a slot with nothing to do waits")
    placement: Literal["auto", "spark", "local"] = Field(
        "auto", description="where ranges are delivered; auto: on Spark where 100,000 rows wait"
    )
    leases: bool = Field(
        True, description="false: every worker carries every started pipeline, without slots"
    )


class Limits(Section):
    payload_bytes: int = Field(262_144, ge=1024, description="largest payload of a job, as JSON")


class Spark(Section):
    remote: str = Field("sc://localhost:15002", description="the Spark Connect server")
    token: SecretStr = Field(SecretStr(""), description="the Connect server's token")


class Staging(Section):
    chunk_threshold_rows: int = Field(
        1_000_000, ge=1, description="a table of more rows is read in several chunks"
    )
    max_parallel_chunks: int = Field(
        16, ge=1, le=10_000, description="maximum number of chunks read at once of a source"
    )


class Storage(Section):
    evidence: str = Field("", description="folder or s3:// of the evidence; empty: in data_dir")
    staging: str = Field("", description="folder or s3:// of staged rows; empty: in data_dir")
    metrics: str = Field("", description="folder or s3:// of metric segments; empty: in data_dir")
    uploads: str = Field("", description="folder or s3:// of uploaded files; empty: in data_dir")
    tables: str = Field("", description="folder of the dynamic tables; empty: in data_dir")
    s3_endpoint: str = Field("", description="address of an S3 that is not Amazon's")
    s3_region: str = Field("us-east-1", description="region of the buckets")
    s3_access_key: SecretStr = Field(SecretStr(""), description="empty: as the machine is set up")
    s3_secret_key: SecretStr = Field(SecretStr(""), description="belongs to s3_access_key")

    @field_validator("evidence", "staging", "metrics", "uploads")
    @classmethod
    def _plain(cls, place: str) -> str:
        if "://" in place and not place.startswith("s3://"):
            raise ValueError("must be a folder or s3://")
        return place

    @field_validator("tables")
    @classmethod
    def _folder(cls, place: str) -> str:
        if "://" in place:
            raise ValueError("must be a folder that the API, workers and Spark's executors share")
        return place


class Uploads(Section):
    bytes: int = Field(2_000_000_000, ge=1, description="largest file that may be uploaded")
    kept_seconds: int = Field(
        7 * 24 * 3600, ge=60, description="how long an upload stays that is not saved as a source"
    )


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


MetricFeature = Literal[
    "delayed_name_removal",
    "experimental_functions",
    "extended_ranges",
    "fill_modifiers",
    "start_timestamps",
]


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
        30, description="seconds between checks for segments to compact or remove"
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
    features: tuple[MetricFeature, ...] = Field(
        (), description="parts of PromQL that Prometheus has behind flags, to be switched on"
    )


class Query(Section):
    workers: str = Field(
        "127.0.0.1:9321",
        description="query workers: host:port, several with commas; dns://name:port; "
        "kubernetes://namespace/service; ecs://cluster/service",
    )
    token: SecretStr = Field(
        SecretStr(""), description="what API and query workers show each other; empty: loopback"
    )
    tls_authority: str = Field(
        "", description="file (PEM) of who signs the certificates of APIs and query workers"
    )
    tls_certificate: str = Field(
        "", description="file (PEM) of the own certificate; with it both sides ask for one"
    )
    tls_key: str = Field("", description="file (PEM) of its key")
    tls_server_name: str = Field(
        "", description="what the certificates of query workers are for; empty: their addresses"
    )
    discovery_seconds: Seconds = Field(5, description="seconds between checks for query workers")
    worker_wait_seconds: Seconds = Field(
        10, description="how long a query waits for a query worker that takes work"
    )
    attempts: int = Field(5, ge=1, description="attempts at a work unit, then its query fails")


class QueryWorker(Section):
    host: str = Field("127.0.0.1", description="address a query worker binds to")
    port: Port = Field(9321, description="port of its control stream; 0 takes a free one")
    artifact_port: Port = Field(
        9322, description="port of its artifacts, /metrics, /health and /ready; 0: a free one"
    )
    metrics_port: Port = Field(
        9323,
        description="port of /metrics, /health and /ready where query.tls_certificate is set; "
        "0: a free one",
    )
    name: str = Field("", description="its identity; empty: host name and port")
    threads: int = Field(2, ge=1, le=256, description="work units that it executes at once")
    queue: int = Field(1000, ge=1, description="work units that may wait, then it takes no more")
    memory_bytes: int = Field(512 << 20, ge=0, description="memory for decoded segments")
    disk_bytes: int = Field(
        8 << 30, ge=1 << 20, description="disk for artifacts and downloaded segments together"
    )
    folder: str = Field("", description="where both lie; empty: in data_dir")
    drain_seconds: Seconds = Field(
        20, description="after SIGTERM, how long work under way may finish and be fetched"
    )
    acknowledged_seconds: float = Field(
        30, ge=0, description="how long an artifact stays after it was fetched"
    )
    unfetched_seconds: Seconds = Field(
        600, description="how long an artifact stays that nobody fetches"
    )


class Scaling(Section):
    min_workers: int = Field(0, ge=0, description="minimum number of workers of a role")
    max_workers: int = Field(50, ge=1, le=10_000, description="maximum number of workers of a role")
    utilisation: float = Field(
        0.95, gt=0, le=1, description="share of a worker's places that demand should fill"
    )
    scale_down_after_seconds: Seconds = Field(
        90, description="how long demand must have been lower before workers are removed"
    )
    scale_down_step: int = Field(4, ge=1, description="workers that one decision may remove")
    patience_seconds: Seconds = Field(
        20, description="a job that waits longer asks for one more worker"
    )
    worker_memory_bytes: int = Field(
        512 << 20, ge=1 << 20, description="memory that `kalla autoscale` plans for a worker"
    )


class Log(Section):
    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="least level shown"
    )
    format: Literal["json", "text"] = Field(
        "json", description="one JSON object a line, or plain text"
    )


def _worker_count(value: object) -> int | Literal["auto"]:
    """A union of its own would report two errors, each under a name that is not a setting."""
    if value == "auto":
        return "auto"
    try:
        number = int(str(value))
    except ValueError:
        number = 0
    if not 1 <= number <= 64:
        raise ValueError("must be a number from 1 to 64, or auto")
    return number


class Up(Section):
    workers: Annotated[int | Literal["auto"], PlainValidator(_worker_count)] = Field(
        2, description="workers that `kalla up` starts; auto: as many as the demand needs"
    )
    query_workers: int = Field(2, ge=1, le=64, description="query workers that it starts")
    postgres_port: Port = Field(54329, description="port of the embedded Postgres")
    nats_port: Port = Field(42229, description="port of the embedded NATS")
    servers: tuple[Literal["kafka", "clickhouse"], ...] = Field(
        (), description="servers that `kalla up` starts besides, for trying out sinks"
    )
    kafka_port: Port = Field(9092, description="port of the embedded Kafka, if it is wanted")
    clickhouse_port: Port = Field(
        8123, description="port of the embedded ClickHouse, if it is wanted"
    )
    spark_port: Port = Field(15002, description="port of the embedded Spark Connect server")
    spark_cores: int = Field(2, ge=1, description="cores of the embedded Spark")
    spark_memory: str = Field(
        "2g", pattern=r"^\d+[mg]$", description="memory of the embedded Spark"
    )
    min_free_bytes: int = Field(1 << 30, ge=0, description="free disk space `kalla up` asks for")


class Telemetry(Section):
    endpoint: str = Field(
        "", description="OpenTelemetry collector (OTLP over HTTP) for spans of queries; empty: none"
    )


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
    sinks: Sinks = Sinks()
    limits: Limits = Limits()
    spark: Spark = Spark()
    staging: Staging = Staging()
    storage: Storage = Storage()
    uploads: Uploads = Uploads()
    secrets: Secrets = Secrets()
    matching: Matching = Matching()
    metrics: Metrics = Metrics()
    query: Query = Query()
    query_worker: QueryWorker = QueryWorker()
    scaling: Scaling = Scaling()
    log: Log = Log()
    telemetry: Telemetry = Telemetry()
    up: Up = Up()

    @property
    def staging_url(self) -> str:
        return self.storage.staging or str(self.data_dir / "staging")

    @property
    def evidence_url(self) -> str:
        return self.storage.evidence or str(self.data_dir / "evidence")

    @property
    def metrics_url(self) -> str:
        return self.storage.metrics or str(self.data_dir / "metrics")

    @property
    def uploads_url(self) -> str:
        return (self.storage.uploads or str(self.data_dir / "uploads")).rstrip("/")

    @property
    def tables_folder(self) -> str:
        return self.storage.tables or str(self.data_dir / "tables")

    def policy(self, job_type: str) -> JobPolicy:
        """A type's own policy over the one named `default`, over the built-in one."""
        merged: dict[str, Any] = {}
        for name in ("default", job_type):
            if name in self.jobs:
                merged |= self.jobs[name].model_dump(exclude_unset=True)
        return JobPolicy(**merged)
