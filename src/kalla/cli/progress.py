"""The bar of a command that takes long: on a terminal, gone when it ends."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


def bar(shown: bool = True, words: int = 48) -> Progress:
    """A few words, how much of it is done, and since when; nothing where nobody looks."""
    console = Console(stderr=True, highlight=False)
    return Progress(
        TextColumn(f"  {{task.description:<{words}}}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not shown or not console.is_terminal,
    )
