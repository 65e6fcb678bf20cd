"""The result of each row of a trial, and the differences between two trials of the same rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

EXAMPLES = 8

_STATUS = pa.schema(
    [
        ("side", pa.string()),
        ("key", pa.string()),
        ("status", pa.string()),
        ("rule", pa.string()),
        ("partner", pa.string()),  # the first by its text, where there are several
    ]
)


def read(evidence: Path) -> pa.Table:
    """Every row that is matched, suggested or ambiguous; a row that is missing is unmatched."""
    parts = []
    if (evidence / "matched").is_dir():
        files = f"read_parquet('{evidence}/matched/*.parquet')"
        for side, other in (("left", "right"), ("right", "left")):
            parts.append(
                f"SELECT '{side}' AS side, {side}_key AS key, CAST(any_value(status) AS VARCHAR) AS"
                f" status, CAST(any_value(rule) AS VARCHAR) AS rule, min({other}_key) AS partner"
                f" FROM {files} WHERE {side}_key IS NOT NULL GROUP BY {side}_key"
            )
    if (evidence / "ambiguous").is_dir():
        parts.append(
            "SELECT CAST(side AS VARCHAR), record_key, 'ambiguous', CAST(rule AS VARCHAR), NULL"
            f" FROM read_parquet('{evidence}/ambiguous/*.parquet')"
        )
    if not parts:
        return _STATUS.empty_table()
    with duckdb.connect() as connection:
        found: pa.Table = connection.sql(" UNION ALL ".join(parts)).to_arrow_table()
    return found.cast(_STATUS)


def changes(
    before: pa.Table, after: pa.Table, renamed: Mapping[str, str] | None = None
) -> Mapping[str, Any]:
    """How many rows have another result, and the first of them by side and key. A renamed rule does
    not change a result: `renamed` maps its earlier name to the new one.
    """
    with duckdb.connect() as connection:
        connection.register("as_named", before)
        names = pa.table(
            {"old": list(renamed or {}), "new": list((renamed or {}).values())},
            pa.schema([("old", pa.string()), ("new", pa.string())]),
        )
        connection.register("renamed", names)
        connection.execute(
            "CREATE TEMP VIEW earlier AS SELECT * REPLACE (coalesce(new, rule) AS rule)"
            " FROM as_named LEFT JOIN renamed ON rule = old"
        )
        connection.register("later", after)
        found = connection.execute(
            """
            SELECT side, key,
                   coalesce(e.status, 'unmatched'), e.rule, e.partner,
                   coalesce(l.status, 'unmatched'), l.rule, l.partner,
                   count(*) OVER () AS total
            FROM earlier e FULL JOIN later l USING (side, key)
            WHERE (e.status, e.rule, e.partner) IS DISTINCT FROM (l.status, l.rule, l.partner)
            ORDER BY side, key LIMIT ?
            """,
            [EXAMPLES],
        ).fetchall()
    return {
        "rows": found[0][8] if found else 0,
        "examples": [
            {"side": row[0], "key": row[1], "before": _result(row[2:5]), "after": _result(row[5:8])}
            for row in found
        ],
    }


def _result(row: tuple[Any, ...]) -> Mapping[str, str | None]:
    return {"status": row[0], "rule": row[1], "partner": row[2]}
