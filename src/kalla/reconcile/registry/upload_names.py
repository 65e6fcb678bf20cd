"""Uploaded files in messages: by the names that people know, without the folders they are in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from kalla.errors import InvalidInput, Unavailable
from kalla.settings import Settings


@contextmanager
def public_errors(settings: Settings) -> Iterator[None]:
    """Removes the folders of uploads from the messages of errors."""
    folder = re.compile(rf"{re.escape(settings.uploads_url)}/[0-9a-f]{{16}}/")
    try:
        yield
    except InvalidInput as error:
        raise type(error)(
            *(replace(each, message=folder.sub("", each.message)) for each in error.problems)
        ) from None
    except Unavailable as error:
        raise Unavailable(folder.sub("", str(error))) from None
