"""What runs leave beside their evidence: places to work in, and files of tasks that do not count.

A task may run twice, and go on after its run has ended; metadata.json names the files that count.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from uuid import uuid4

from kalla import logs
from kalla.errors import KallaError, NotFound
from kalla.reconcile.evidence.writing.datasets import DATASETS
from kalla.storage import Storage, join

METADATA = "metadata.json"
WORK = ".work-"  # begins the names of places that runs work in

_log = logs.get(__name__)


@contextmanager
def work_place(evidence: str, storage: Storage) -> Iterator[str]:
    """A place to work in, beside the evidence, which no other run has; gone afterwards."""
    place = join(evidence, f"{WORK}{uuid4().hex}")
    try:
        yield place
    finally:
        with left_to_the_sweeper(place):
            storage.remove(place)


@contextmanager
def none_if_it_fails(attempt: str, storage: Storage) -> Iterator[None]:
    """An attempt's place of its own is gone if the body fails; what its tasks write even then, the
    sweeper finds."""
    try:
        yield
    except BaseException:
        with left_to_the_sweeper(attempt):
            storage.remove(attempt)
        raise


@contextmanager
def left_to_the_sweeper(place: str) -> Iterator[None]:
    """What cannot be removed now fails no run: that it is there changes nothing."""
    try:
        yield
    except KallaError as error:
        _log.warning("something of a run is left", place=place, reason=str(error))


def sweep(evidence: str, storage: Storage) -> None:
    """Remove what the evidence does not name; all of the datasets, where there is no evidence."""
    named: dict[str, set[str]] = {}
    with suppress(NotFound):
        datasets = json.loads(storage.read_text(join(evidence, METADATA)))["datasets"]
        named = {name: set(part["files"]) for name, part in datasets.items()}
    for name in storage.names(evidence):
        if name.startswith(WORK):
            storage.remove(join(evidence, name))
    for dataset in DATASETS:
        found = storage.names(join(evidence, dataset))
        for name in found:
            if name not in named.get(dataset, set()):
                storage.remove(join(evidence, dataset, name))
