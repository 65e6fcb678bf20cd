"""Pairs of files as people have them, each with a recipe that somebody who knows them wrote."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[1] / "examples" / "bank"

Document = dict[str, Any]


def recipe(left: Document, right: Document, *rules: Document) -> Document:
    return {"name": "known", "sources": {"left": left, "right": right}, "rules": list(rules)}


def rule(*conditions: Document, name: str = "only", **more: Any) -> Document:
    return {"name": name, "conditions": list(conditions), **more}


def table(path: Path, header: list[str], rows: list[list[Any]], delimiter: str = ",") -> str:
    lines = [header, *([str(value) for value in row] for row in rows)]
    path.write_text("".join(delimiter.join(line) + "\n" for line in lines))
    return str(path)


def cents(chance: random.Random, low: int, high: int) -> Decimal:
    return Decimal(chance.randrange(low * 100, high * 100)) / 100


def bank_and_ledger(_: Path) -> Document:
    bank = {
        "delimiter": ";", "encoding": "windows-1252", "skip": 3, "footer": 1,
        "decimal": ",", "thousands": ".", "date_format": "%d.%m.%Y",
    }  # fmt: skip
    reference = {
        "left": "Invoice no", "op": "eq", "right": "Verwendungszweck",
        "derive_right": ["upper", {"regex": r"RE-\d{4}-\d+"}],
    }  # fmt: skip
    amount = {"left": "Amount", "op": "tolerance", "right": "Betrag", "absolute": "0.01"}
    return recipe(
        {"uri": str(EXAMPLES / "ledger.xlsx"), "primary_key": ["Invoice no"]},
        {
            "uri": str(EXAMPLES / "bank-export.csv"),
            "primary_key": ["Buchung", "Verwendungszweck"],
            "csv": bank,
        },
        rule(reference, amount, name="paid"),
        rule(reference, amount, name="in parts", cardinality="1:N"),
    )


def payments_and_orders(folder: Path) -> Document:
    chance = random.Random(1)
    orders, payments = [], []
    for number in range(400):
        total, placed = cents(chance, 5, 900), date(2026, 3, 1) + timedelta(days=number % 60)
        orders.append(
            [f"ORD-{number:06}", f"buyer{number % 90}@shop.example", total, "EUR", placed]
        )
        if chance.random() < 0.93:
            paid = placed + timedelta(days=chance.randrange(4))
            memo = chance.choice(["web {} thanks", "{}", "card {} 3ds", "order {}"])
            payments.append(
                {
                    "payment": f"P{chance.randrange(10**9):09}{number}",
                    "memo": memo.format(f"ord-{number:06}"),
                    "value": str(total if chance.random() < 0.97 else total - 1),
                    "currency": "EUR",
                    "at": f"{paid}T12:00:00Z",
                }
            )
    file = folder / "payments.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in payments))
    return recipe(
        {
            "uri": table(
                folder / "orders.csv", ["order_id", "buyer", "total", "currency", "placed"], orders
            ),
            "primary_key": ["order_id"],
        },
        {"uri": str(file), "primary_key": ["payment"]},
        rule(
            {
                "left": "order_id", "op": "eq", "right": "memo",
                "derive_right": ["upper", {"regex": r"ORD-\d+"}],
            },
            {"left": "total", "op": "tolerance", "right": "value", "absolute": "0"},
        ),
    )  # fmt: skip


def inventory_counts(folder: Path) -> Document:
    chance = random.Random(2)
    book, count = [], []
    for sku in range(120):
        for place in ("NORTH", "SOUTH", "EAST"):
            quantity = chance.randrange(1, 500)
            book.append([f"{sku + 77:08}", place, quantity, f"Item {sku}"])
            if chance.random() < 0.95:
                seen = quantity if chance.random() < 0.9 else quantity + chance.randrange(1, 9)
                count.append([sku + 77, place.lower(), seen, chance.choice(["anna", "bo", "cy"])])
    return recipe(
        {
            "uri": table(folder / "book.csv", ["sku", "site", "on_hand", "title"], book),
            "primary_key": ["sku", "site"],
        },
        {
            "uri": table(folder / "count.csv", ["article", "place", "counted", "by"], count),
            "primary_key": ["article", "place"],
        },
        rule(
            {
                "left": "sku", "op": "eq", "right": "article",
                "derive": [{"regex": "^0*(.+)$"}],
            },
            {"left": "site", "op": "eq", "right": "place", "derive": ["upper"]},
            {"left": "on_hand", "op": "tolerance", "right": "counted", "absolute": "0"},
        ),
    )  # fmt: skip


def card_settlements(folder: Path) -> Document:
    chance = random.Random(3)
    sales, settled = [], []
    for number in range(500):
        gross, day = cents(chance, 10, 400), date(2026, 4, 1) + timedelta(days=number % 30)
        code = f"{chance.randrange(16**8):08X}"
        sales.append([number + 1, code, gross, f"{day:%m/%d/%Y}", "till " + str(number % 7)])
        if chance.random() < 0.96:
            fee = (gross * Decimal(chance.choice(["1.2", "1.9", "2.4"])) / 100).quantize(
                Decimal("0.01")
            )
            paid = day + timedelta(days=chance.randrange(1, 4))
            settled.append([f"S{number:05}", code.lower(), gross - fee, f"{paid:%Y-%m-%d}"])
    return recipe(
        {
            "uri": table(folder / "sales.csv", ["nr", "auth", "gross", "day", "till"], sales),
            "primary_key": ["nr"],
            "csv": {"date_format": "%m/%d/%Y"},
        },
        {
            "uri": table(
                folder / "settled.csv", ["line", "approval", "net", "paid_out"], settled, "\t"
            ),
            "primary_key": ["line"],
            "csv": {"delimiter": "\t"},
        },
        rule(
            {"left": "auth", "op": "eq", "right": "approval", "derive": ["upper"]},
            {"left": "gross", "op": "tolerance", "right": "net", "percent": "2.5"},
        ),
    )


def intercompany(folder: Path) -> Document:
    chance = random.Random(4)
    ours, theirs = [], []
    for number in range(300):
        amount = cents(chance, 100, 90_000) * chance.choice([1, 1, -1])
        day = date(2026, 1, 5) + timedelta(days=number % 80)
        ours.append(
            [f"IC{number:05}", f"{amount:,.2f}".replace(",", "'"), "CHF", f"{day:%d.%m.%y}"]
        )
        if chance.random() < 0.9:
            other = -amount if chance.random() < 0.95 else -amount + 100
            booked = day + timedelta(days=chance.randrange(-1, 3))
            theirs.append([f"ic {number:05}", f"{other}", "CHF", f"{booked}", "group"])
    return recipe(
        {
            "uri": table(folder / "ours.csv", ["doc", "betrag", "whg", "datum"], ours, ";"),
            "primary_key": ["doc"],
            "csv": {"delimiter": ";", "thousands": "'", "date_format": "%d.%m.%y"},
        },
        {
            "uri": table(folder / "theirs.csv", ["ref", "amt", "cur", "on", "unit"], theirs, "|"),
            "primary_key": ["ref"],
            "csv": {"delimiter": "|"},
        },
        rule(
            {"left": "doc", "op": "eq", "right": "ref", "derive": ["digits"]},
            {
                "left": "betrag", "op": "tolerance", "right": "amt", "absolute": "0",
                "negate": "right",
            },
        ),
    )  # fmt: skip


def subscriptions_in_parts(folder: Path) -> Document:
    chance = random.Random(5)
    invoices: list[list[Any]] = []
    payments: list[list[Any]] = []
    for number in range(250):
        monthly = cents(chance, 9, 60)
        parts = chance.choice([1, 3, 3, 12])
        start = date(2026, 1, 1) + timedelta(days=number % 25)
        invoices.append([f"SUB/{number + 1000}", monthly * parts, "USD", start])
        if chance.random() < 0.94:
            for part in range(parts):
                day = start + timedelta(days=part * 7)
                payments.append([len(payments) + 1, f"SUB/{number + 1000}", monthly, "USD", day])
    return recipe(
        {
            "uri": table(folder / "subs.csv", ["contract", "yearly", "currency", "from"], invoices),
            "primary_key": ["contract"],
        },
        {
            "uri": table(
                folder / "paid.csv", ["id", "contract", "amount", "currency", "on"], payments
            ),
            "primary_key": ["id"],
        },
        rule(
            {"left": "contract", "op": "eq", "right": "contract"},
            {"left": "yearly", "op": "tolerance", "right": "amount", "absolute": "0"},
            cardinality="1:N",
        ),
    )


def receivables_by_country(folder: Path) -> Document:
    """Columns of few values agree in every pair, and amounts recur: neither identifies a row."""
    chance = random.Random(6)
    invoices: list[list[Any]] = []
    paid: list[list[Any]] = []
    for number in range(600):
        country, day = chance.choice(["DE", "FR", "IT"]), date(2026, 1, 1) + timedelta(number // 9)
        customer, amount = f"Customer {number % 120}", cents(chance, 90, 110)
        invoices.append([f"INV-{number:05}", country, customer, amount, day])
        key = "".join(chance.choices("abcdefghij", k=9))
        reference = f"INV-{number:05}" if chance.random() < 0.8 else ""
        if reference:
            paid.append([key, reference, country, customer, amount, day + timedelta(days=3)])
        else:
            paid.append([key, "", country, "", cents(chance, 90, 110), day])
    header = ["country", "customer", "amount"]
    return recipe(
        {
            "uri": table(folder / "invoices.csv", ["invoice", *header, "due"], invoices),
            "primary_key": ["invoice"],
        },
        {
            "uri": table(folder / "paid.csv", ["id", "text", "land", "name", "paid", "on"], paid),
            "primary_key": ["id"],
        },
        rule(
            {"left": "invoice", "op": "eq", "right": "text"},
            {"left": "amount", "op": "tolerance", "right": "paid", "absolute": "0"},
        ),
    )


def subscriptions_of_other_months(folder: Path) -> Document:
    """The same amount of the same customer each month: an unpaid month must stay an exception."""
    chance = random.Random(7)
    invoices: list[list[Any]] = []
    paid: list[list[Any]] = []
    for number in range(60):
        for month in range(1, 7):
            reference = f"S-{number:03}-{month:02}"
            due = date(2026, month, 1)
            row = [f"Customer {number}", f"{20 + number}.90"]
            if (number + month) % 7:  # else it was billed elsewhere, or not paid
                invoices.append([reference, *row, due])
            if (number * month) % 5:
                paid.append([len(paid), reference, *row, due + timedelta(chance.randrange(50))])
    header = ["customer", "amount", "day"]
    return recipe(
        {
            "uri": table(folder / "billed.csv", ["reference", *header], invoices),
            "primary_key": ["reference"],
        },
        {
            "uri": table(folder / "received.csv", ["id", "text", *header], paid),
            "primary_key": ["id"],
        },
        rule(
            {"left": "reference", "op": "eq", "right": "text"},
            {"left": "amount", "op": "tolerance", "right": "amount", "absolute": "0"},
        ),
    )


def marked_ledger_and_bank(folder: Path) -> Document:
    """A ledger whose amounts have no sign, but a mark for debit (S) or credit (H)."""
    chance = random.Random(7)
    ledger, bank = [], []
    for number in range(300):
        amount, on = cents(chance, 10, 9000), date(2026, 4, 1) + timedelta(days=number // 5)
        is_debit = chance.random() < 0.6
        document = (
            f"RG{202604000 + number}" if is_debit else f"ER-{chance.randrange(100000, 999999)}"
        )
        written = f"{amount:.2f}".replace(".", ",")
        ledger.append([written, "S" if is_debit else "H", "EUR", f"{on:%d.%m.%Y}", document])
        if chance.random() < 0.95:
            paid = on + timedelta(days=chance.randrange(3))
            text = f"Zahlung {document} KDNR {chance.randrange(1000, 9999)}"
            signed = written if is_debit else f"-{written}"
            bank.append([number, f"{paid:%d.%m.%Y}", text, signed, "EUR"])
    options = {"delimiter": ";", "decimal": ",", "date_format": "%d.%m.%Y"}
    header = ["Umsatz", "S/H", "WKZ", "Belegdatum", "Belegfeld 1"]
    reference = {
        "left": "Belegfeld 1", "op": "eq", "right": "Text",
        "derive_right": [{"regex": r"RG\d{9}|ER-\d{6}"}],
    }  # fmt: skip
    amount_of = {"left": "Umsatz", "op": "tolerance", "right": "Betrag", "absolute": "0"}
    return recipe(
        {
            "uri": table(folder / "ledger.csv", header, ledger, ";"),
            "primary_key": ["Belegfeld 1"],
            "csv": options,
        },
        {
            "uri": table(
                folder / "bank.csv", ["Nr", "Tag", "Text", "Betrag", "Währung"], bank, ";"
            ),
            "primary_key": ["Nr"],
            "csv": options,
        },
        rule(
            reference, amount_of, name="debit",
            left_filters=[{"column": "S/H", "op": "eq", "value": "S"}],
        ),
        rule(
            reference, amount_of | {"negate": "right"}, name="credit",
            left_filters=[{"column": "S/H", "op": "eq", "value": "H"}],
        ),
    )  # fmt: skip


def ledger_and_two_columns(folder: Path) -> Document:
    """A bank's export with debits and credits in columns of their own, each empty in the other's
    rows."""
    chance = random.Random(8)
    ledger, bank = [], []
    for number in range(300):
        amount, on = cents(chance, 10, 9000), date(2026, 1, 2) + timedelta(days=number // 5)
        is_deposit = chance.random() < 0.5
        ledger.append(
            [9000 + number, f"{on:%m/%d/%Y}", 20311 + number, amount if is_deposit else -amount]
        )
        if chance.random() < 0.95:
            posted = on + timedelta(days=chance.choice([1, 1, 2, 3]))
            text = ("ACH CREDIT REF {}" if is_deposit else "CHECK # {}").format(20311 + number)
            both = ["", amount] if is_deposit else [amount, ""]
            bank.append([f"B{number}", f"{posted:%m/%d/%Y}", text, *both])
    options = {"date_format": "%m/%d/%Y"}
    reference = {
        "left": "Num", "op": "eq", "right": "Description",
        "derive_right": [{"regex": r"\d{5}"}],
    }  # fmt: skip
    amount_of = {"left": "Amount", "op": "tolerance", "absolute": "0"}
    return recipe(
        {
            "uri": table(folder / "ledger.csv", ["Trans", "Date", "Num", "Amount"], ledger),
            "primary_key": ["Trans"],
            "csv": options,
        },
        {
            "uri": table(
                folder / "bank.csv", ["Id", "Posted", "Description", "Debit", "Credit"], bank
            ),
            "primary_key": ["Id"],
            "csv": options,
        },
        rule(reference, amount_of | {"right": "Credit"}, name="deposits"),
        rule(reference, amount_of | {"right": "Debit", "negate": "right"}, name="payments"),
    )


PAIRS: tuple[Callable[[Path], Document], ...] = (
    bank_and_ledger,
    payments_and_orders,
    inventory_counts,
    card_settlements,
    intercompany,
    subscriptions_in_parts,
    receivables_by_country,
    subscriptions_of_other_months,
    marked_ledger_and_bank,
    ledger_and_two_columns,
)
