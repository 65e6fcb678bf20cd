"""Examples for the help of command groups. A single command has its own in its docstring."""

from __future__ import annotations

_EXAMPLES: dict[str, tuple[str, ...]] = {
    "config": ("kalla config show", "KALLA_API_PORT=8080 kalla config show --format json"),
    "scaling": (
        "kalla scaling show",
        "kalla scaling list --role exec",
        "kalla scaling explain 17",
        "kalla scaling simulate --trace diurnal --policy demand-tuned",
    ),
    "jobs": (
        "kalla jobs submit probe --sleep 5 --wait",
        "kalla jobs list --status failed",
        "kalla jobs show 17",
        "kalla jobs retry 17",
    ),
    "queues": ("kalla queues list", "kalla queues pause exec", "kalla queues resume exec"),
    "workers": ("kalla workers list", "kalla workers list --format json"),
    "runs": (
        "kalla runs submit bank.yaml --set month=2026-10 --wait",
        "kalla runs watch 17",
        "kalla runs export 17 unmatched_left --output missing.csv",
        "kalla runs diff 16 17",
    ),
    "evidence": ("kalla evidence verify runs/17", "kalla evidence verify s3://audit/runs/17"),
    "recipe": (
        "kalla recipe propose bank.csv ledger.csv --output bank.yaml",
        "kalla recipe check bank.yaml",
        "kalla recipe save bank.yaml",
    ),
    "sources": (
        "kalla sources profile bank.csv",
        "kalla sources add ledger postgresql://reader@db/books --table entries --password secret://books",
        "kalla sources test ledger",
        "kalla sources preview ledger --rows 5",
    ),
    "schedules": (
        "kalla schedules add bank '0 7 * * 1-5' --time-zone Europe/Berlin",
        "kalla schedules list --recipe bank",
        "kalla schedules pause 3",
    ),
    "destinations": (
        "kalla destinations add alerts https://hooks.example/kalla --secret secret://hooks",
        "kalla runs submit bank.yaml --callback alerts",
    ),
    "sinks": (
        "kalla sinks infer --brokers localhost:9092 --topic orders",
        "kalla sinks apply orders.yaml",
        "kalla sinks start orders",
        "kalla sinks scale orders 3",
        "kalla sinks dead-letters list orders",
    ),
    "tables": (
        "kalla tables apply tables --dry-run",
        "kalla tables explain revenue",
        "kalla tables refresh revenue --wait",
        "kalla tables audit revenue",
    ),
    "metrics": (
        "kalla metrics import samples.parquet more.om",
        "kalla metrics check",
    ),
    "secret": ("kalla secret set books", "kalla secret list", "kalla secret remove books"),
    "token": (
        "kalla token create --name ci --role operator --expires-days 90",
        "kalla token list",
        "kalla token revoke 3",
    ),
}


def epilog(group: str) -> str | None:
    """The examples of a group; \\b keeps the help from joining their lines."""
    if group not in _EXAMPLES:
        return None
    return "\b\n" + "\n".join(("Examples:", *(f"  {each}" for each in _EXAMPLES[group])))
