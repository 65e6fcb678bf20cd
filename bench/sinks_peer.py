"""The peer of bench/sinks.py: a plain Python consumer with batched inserts, at its best settings.

It knows nothing of ledgers, dead letters or exact types: what is no JSON ends it.
"""

from __future__ import annotations

import argparse
import io
import multiprocessing

import httpx
import orjson
import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition

BATCH = 100_000
SCHEMA = pa.schema(
    {
        "id": pa.uint64(),
        "name": pa.string(),
        "amount": pa.float64(),
        "at": pa.int64(),
        "city": pa.string(),
        "source": pa.string(),
    }
)


def consume(brokers: str, topic: str, partitions: list[int], messages: int, url: str, table: str,
            user: str, password: str) -> None:  # fmt: skip
    consumer = Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": f"peer-{topic}",
            "enable.auto.commit": False,
            "fetch.max.bytes": 104_857_600,
            "max.partition.fetch.bytes": 33_554_432,
            "queued.max.messages.kbytes": 262_144,
            "queued.min.messages": 1_000_000,
            "check.crcs": False,
            "fetch.wait.max.ms": 10,
        }
    )
    consumer.assign([TopicPartition(topic, each, 0) for each in partitions])
    http = httpx.Client(
        headers={"X-ClickHouse-User": user, "X-ClickHouse-Key": password}, timeout=120
    )
    statement = f"INSERT INTO {table} ({', '.join(SCHEMA.names)}) FORMAT ArrowStream"
    done = 0
    while done < messages:
        batch = consumer.consume(BATCH, 0.5)
        documents = [orjson.loads(each.value() or b"") for each in batch]
        if not documents:
            continue
        columns = {
            "id": [each["id"] for each in documents],
            "name": [each["name"] for each in documents],
            "amount": [each["amount"] for each in documents],
            "at": [each["at"] for each in documents],
            "city": [each["address"]["city"] for each in documents],
            "source": [each["source"] for each in documents],
        }
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, SCHEMA) as writer:
            writer.write_table(pa.table(columns, schema=SCHEMA))
        http.post(
            url, params={"query": statement, "async_insert": "0"}, content=sink.getvalue()
        ).raise_for_status()
        consumer.commit(asynchronous=True)
        done += len(documents)
    consumer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("brokers", "topic", "url", "table", "user", "password"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--counts", required=True, help="messages of each partition, by comma")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    counts = [int(each) for each in given.counts.split(",")]
    running = []
    for number in range(given.processes):
        mine = list(range(number, given.partitions, given.processes))
        arguments = (given.brokers, given.topic, mine, sum(counts[each] for each in mine),
                     given.url, given.table, given.user, given.password)  # fmt: skip
        running.append(multiprocessing.Process(target=consume, args=arguments))
    for each in running:
        each.start()
    for each in running:
        each.join()


if __name__ == "__main__":
    main()
