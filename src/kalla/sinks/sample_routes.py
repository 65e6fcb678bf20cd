"""REST of samples: messages of a topic, an inferred mapping, and previews of rules."""

from __future__ import annotations

import asyncio
from typing import Annotated

import orjson
from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from kalla.errors import InvalidInput
from kalla.secrets import Vault
from kalla.sinks import store
from kalla.sinks.api_models import LetterTrial, Name, SampleRequest, Samples, Trial
from kalla.sinks.model import (
    ClickHouseConfig,
    Column,
    KafkaConfig,
    Pipeline,
    RowRules,
    rule_problems,
)
from kalla.sinks.records import dead_letters
from kalla.sinks.rows.inference import FieldFacts, infer
from kalla.sinks.rows.preview import Preview, Sample, preview
from kalla.sinks.servers import checks
from kalla.sinks.servers.message_ranges import Message
from kalla.sinks.servers.server_connections import kafka_settings
from kalla.sinks.servers.topic_samples import take_samples
from kalla.sinks.store import PipelineRecord
from kalla.web.access import GuardedRoute, harmless, needs
from kalla.web.app_state import AppState, State

router = APIRouter(prefix="/api/pipelines", route_class=GuardedRoute, tags=["pipelines"])

_SAMPLES = 1000


class Proposal(BaseModel):
    """A mapping inferred from samples."""

    samples: int
    unreadable: int
    empty: int
    fields: list[FieldFacts]
    mapping: list[Column] = Field(description="the proposed columns")
    create_tables: list[str] = Field(description="the CREATE TABLE of both tables")


@router.post("/sample")
@needs("admin")
@harmless
async def sample_topic(state: State, wanted: SampleRequest) -> Samples:
    """Messages of a topic that no pipeline reads yet."""
    found = await _taken(state, wanted.kafka, wanted.samples)
    return Samples(samples=[Sample.of(each) for each in found])


@router.post("/infer", response_model_exclude_unset=True)
@needs("admin")
@harmless
async def infer_topic(state: State, wanted: SampleRequest) -> Proposal:
    """A mapping for a topic that no pipeline reads yet."""
    found = await _taken(state, wanted.kafka, wanted.samples)
    table = "".join(sign if sign.isalnum() else "_" for sign in wanted.kafka.topic)
    table = table if table[0].isalpha() else f"t_{table}"
    return _proposal(found, wanted.kafka, ClickHouseConfig(url="http://localhost", table=table))


@router.get("/{name}/sample")
@needs("operator")
async def sample_pipeline(
    state: State, name: Name, samples: Annotated[int, Query(ge=1, le=_SAMPLES)] = 20
) -> Samples:
    """Messages of the pipeline's topic, from the beginning and the end of each partition."""
    record = await _record(state, name)
    found = await _taken(state, record.kafka, samples)
    return Samples(samples=[Sample.of(each) for each in found])


@router.post("/{name}/infer", response_model_exclude_unset=True)
@harmless
async def infer_pipeline(state: State, name: Name) -> Proposal:
    """A mapping inferred from the topic's current messages."""
    record = await _record(state, name)
    found = await _taken(state, record.kafka, _SAMPLES)
    return _proposal(found, record.kafka, record.clickhouse)


@router.post("/{name}/mapping/preview")
@harmless
async def preview_mapping(state: State, name: Name, trial: Trial) -> Preview:
    """The rows of samples, and the refused ones with reasons."""
    record = await _record(state, name)
    rules = _rules(record, trial)
    messages = await _messages(state, record, trial)
    return await asyncio.to_thread(preview, messages, rules)


@router.post("/{name}/filters/test")
@harmless
async def test_filters(state: State, name: Name, trial: Trial) -> Preview:
    """The same, for filters: the rows that pass, and those left out."""
    return await preview_mapping(state, name, trial)


@router.post("/{name}/dead-letters/test")
@harmless
async def test_dead_letter(state: State, name: Name, trial: LetterTrial) -> Preview:
    """The result of one dead letter under other rules."""
    record = await _record(state, name)
    rules = _rules(record, trial)
    resolve = Vault(state.settings).resolve
    message = await asyncio.to_thread(
        dead_letters.message_of, record, resolve, trial.partition, trial.offset
    )
    return await asyncio.to_thread(preview, [message], rules)


async def _record(state: AppState, name: str) -> PipelineRecord:
    async with state.database.transaction() as connection:
        return await store.get(connection, name)


def _rules(record: PipelineRecord, trial: Trial) -> RowRules:
    saved = record.rules
    rules = RowRules(
        0,
        saved.mapping if trial.mapping is None else tuple(trial.mapping),
        saved.filters if trial.filters is None else tuple(trial.filters),
        trial.tombstones or saved.tombstones,
    )
    if problems := rule_problems(rules.mapping, rules.filters):
        raise InvalidInput(*problems)
    return rules


async def _messages(state: AppState, record: PipelineRecord, trial: Trial) -> list[Message]:
    if trial.messages is None:
        return await _taken(state, record.kafka, trial.samples)
    return [
        Message(record.kafka.topic, 0, number, 0, None, orjson.dumps(document))
        for number, document in enumerate(trial.messages)
    ]


async def _taken(state: AppState, kafka: KafkaConfig, limit: int) -> list[Message]:
    resolve = Vault(state.settings).resolve

    def take() -> list[Message]:
        return take_samples(kafka_settings(kafka, resolve), kafka.topic, limit)

    return await asyncio.to_thread(take)


def _proposal(messages: list[Message], kafka: KafkaConfig, target: ClickHouseConfig) -> Proposal:
    found = infer(messages)
    tables: list[str] = []
    if found.mapping:
        pipeline = Pipeline(
            name="proposal", kafka=kafka, clickhouse=target, mapping=tuple(found.mapping)
        )
        tables = list(checks.definitions(pipeline).values())
    return Proposal(
        samples=found.samples,
        unreadable=found.unreadable,
        empty=found.empty,
        fields=found.fields,
        mapping=found.mapping,
        create_tables=tables,
    )
