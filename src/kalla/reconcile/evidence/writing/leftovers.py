"""Files that runs leave next to their evidence: work folders, and files of superseded tasks.

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
    """A work folder next to the evidence, used by this run alone; removed afterwards."""
    place = join(evidence, f"{WORK}{uuid4().hex}")
    try:
        yield place
    finally:
        with left_to_the_sweeper(place):
            storage.remove(place)


@contextmanager
def none_if_it_fails(attempt: str, storage: Storage) -> Iterator[None]:
    """Removes an attempt's folder if the body fails; the sweeper removes what tasks write later."""
    try:
        yield
    except BaseException:
        with left_to_the_sweeper(attempt):
            storage.remove(attempt)
        raise


@contextmanager
def swept_if_it_fails(evidence: str, storage: Storage) -> Iterator[None]:
    """Removes the files that tasks have written if the body fails: no metadata.json names them."""
    try:
        yield
    except BaseException:
        with left_to_the_sweeper(evidence):
            sweep(evidence, storage)
        raise


@contextmanager
def left_to_the_sweeper(place: str) -> Iterator[None]:
    """An error while removing files does not fail the run: the files are harmless."""
    try:
        yield
    except KallaError as error:
        _log.warning("files of a run could not be removed", place=place, reason=str(error))


def sweep(evidence: str, storage: Storage) -> None:
    """Removes files that the evidence does not name; all dataset files, if there is no evidence."""
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
