"""The static gate: queues and waits of query workers are bounded.

`make check` runs this with the unit tests. A queue without a size grows until the memory is full; a
`get` or `put` without a timeout waits for ever for a peer that is gone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from kalla import query

ROOMS = ("coordination", "dispatch", "worker", "discovery")
FILES = sorted(path for room in ROOMS for path in (Path(query.__file__).parent / room).glob("*.py"))
QUEUES = frozenset({"Queue", "LifoQueue", "PriorityQueue", "SimpleQueue", "JoinableQueue"})


def problems(text: str) -> Iterator[str]:
    tree = ast.parse(text)
    bounded = {
        id(call)
        for block in ast.walk(tree)
        if isinstance(block, ast.AsyncWith) and any(_is_timeout(item) for item in block.items)
        for call in ast.walk(block)
    }
    names = _queues(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = _name(node.func)
        where = f"line {node.lineno}"
        if name == "SimpleQueue" or (name in QUEUES and not _has_size(node)):
            yield f"{where}: {name} without a size"
        if name == "deque" and _is_shared(node, tree):
            yield f"{where}: a deque between tasks without maxlen"
        if isinstance(node.func, ast.Attribute) and name in ("get", "put", "join"):
            of = _name(node.func.value)
            if of in names and id(node) not in bounded and not _has_timeout(node):
                yield f"{where}: {of}.{name}() without a timeout"
        waits = name == "result" and _name(getattr(node.func, "value", node)) == "result"
        if waits and not _has_timeout(node) and not node.args:
            yield f"{where}: a future is waited for without a timeout"


def _is_timeout(item: ast.withitem) -> bool:
    call = item.context_expr
    return isinstance(call, ast.Call) and _name(call.func) in ("timeout", "timeout_at")


def _has_size(call: ast.Call) -> bool:
    size = call.args[0] if call.args else None
    for keyword in call.keywords:
        size = keyword.value if keyword.arg == "maxsize" else size
    return size is not None and not (isinstance(size, ast.Constant) and size.value in (0, None))


def _has_timeout(call: ast.Call) -> bool:
    return any(keyword.arg == "timeout" for keyword in call.keywords)


def _is_shared(call: ast.Call, tree: ast.AST) -> bool:
    """A deque that is emptied within the call that fills it says so in a comment's words."""
    if any(keyword.arg == "maxlen" for keyword in call.keywords) or len(call.args) > 1:
        return False
    holder = next(
        (
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.AnnAssign | ast.Assign) and node.value is call
        ),
        None,
    )
    target = holder.target if isinstance(holder, ast.AnnAssign) else None
    return target is None or _name(target) != "_events"  # `_feed` empties it before it returns


def _queues(tree: ast.AST) -> set[str]:
    """Names that a queue is assigned to, or that are annotated as one."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and _name(getattr(node.value, "func", node)) in QUEUES:
            found.update(_name(target) for target in node.targets)
        if isinstance(node, ast.AnnAssign) and _of_queue(node.annotation):
            found.add(_name(node.target))
        if isinstance(node, ast.arg) and node.annotation is not None and _of_queue(node.annotation):
            found.add(node.arg)
    for node in ast.walk(tree):  # another name for one of them
        if isinstance(node, ast.Assign) and _name(node.value) in found - {""}:
            found.update(_name(target) for target in node.targets)
    return found - {""}


def _of_queue(annotation: ast.AST) -> bool:
    outer = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    return _name(outer) in QUEUES


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_queues_and_waits_are_bounded(path: Path) -> None:
    assert list(problems(path.read_text("utf-8"))) == []


@pytest.mark.parametrize(
    "text",
    [
        "import queue\nq = queue.Queue()",
        "import asyncio\nq = asyncio.Queue(0)",
        "import queue\nq = queue.SimpleQueue()",
        "q = Queue(5)\nq.get()",
        "async def f():\n    q = Queue(5)\n    await q.put(1)",
        "class A:\n  def f(self):\n    self.q: Queue[int] = Queue(5)\n    self.q.get()",
        "from collections import deque\nwaiting = deque()",
        "def f(result):\n    return result.result()",
    ],
)
def test_the_gate_refuses_what_is_not_bounded(text: str) -> None:
    assert list(problems(text))


@pytest.mark.parametrize(
    "text",
    [
        "q = Queue(5)\nq.get(timeout=1)",
        "async def f():\n  q = Queue(5)\n  async with asyncio.timeout(1):\n    await q.get()",
        "q = Queue(maxsize=3)\nq.put_nowait(1)",
        "d = {}\nd.get('a')",
    ],
)
def test_the_gate_lets_bounded_ones_through(text: str) -> None:
    assert list(problems(text)) == []
