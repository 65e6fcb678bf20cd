"""Structured logs: a line an event, with job, run and worker where there are any."""

from __future__ import annotations

import logging
import sys
from typing import Any, Literal, TextIO, cast

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

from kalla.redaction import scrub_value

Format = Literal["json", "text"]


def configure(level: str = "info", style: Format = "json", stream: TextIO | None = None) -> None:
    """Kalla's own lines and its libraries' go the same way, to standard error."""
    stream = stream or sys.stderr
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _without_secrets,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=False,
    )
    renderer: Processor = (
        structlog.processors.JSONRenderer()
        if style == "json"
        else structlog.dev.ConsoleRenderer(colors=stream.isatty())
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.captureWarnings(True)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for noisy in ("httpx", "httpcore", "nats", "uvicorn.access"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def get(name: str) -> FilteringBoundLogger:
    return cast(FilteringBoundLogger, structlog.stdlib.get_logger(name))


def bind(**values: Any) -> None:
    """Every later line of this task or thread carries these values."""
    structlog.contextvars.bind_contextvars(**values)


def _without_secrets(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    return cast(EventDict, scrub_value(event))
