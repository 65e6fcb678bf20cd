"""A realistic pair of sources: invoices, and payments late, split, short, doubled or missing.

Made from the row number alone, so that everybody sees the same figures.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from random import Random

import psycopg

from kalla.reconcile.recipe.parameter_values import escaped

_RECIPE = """\
name: invoices and payments
description: An accountant's invoices against a bank's payments.
sources:
  left:
    uri: {invoices}
    primary_key: [invoice_no]
    amount: amount
    currency: currency
  right:
    uri: {payments}
    table: public.payments
    password: secret://demo
    primary_key: [payment_id]
    amount: amount
    currency: currency
rules:
  - name: paid in full
    cardinality: "1:1"
    conditions:
      - {{left: invoice_no, op: eq, right: reference, derive: [trim, upper]}}
      - {{left: amount, op: tolerance, right: amount, absolute: 0.01}}
      - {{left: due_on, op: date_window, right: paid_on, before: 30, after: 10}}
  - name: paid late
    cardinality: "1:1"
    conditions:
      - {{left: invoice_no, op: eq, right: reference, derive: [trim, upper]}}
      - {{left: amount, op: tolerance, right: amount, absolute: 0.01}}
      - {{left: due_on, op: date_window, right: paid_on, before: 30, after: 120}}
  - name: paid in parts
    cardinality: "1:N"
    conditions:
      - {{left: invoice_no, op: eq, right: reference, derive: [trim, upper]}}
      - {{left: amount, op: tolerance, right: amount, absolute: 0.01}}
  - name: without its reference
    cardinality: "1:1"
    conditions:
      - {{left: customer, op: eq, right: payer, derive: [trim, upper]}}
      - {{left: amount, op: tolerance, right: amount, absolute: 0}}
      - {{left: due_on, op: date_window, right: paid_on, before: 30, after: 30}}
"""

_FIRST = date(2026, 1, 2)
_NAMES = (
    "Abbot & Sons", "Nordlicht GmbH", "Café Olé", "Ångström Instruments", "Baker Street Ltd",
    "Ferrovia SpA", "Kowalski i Syn", "Delta Marine", "Müller Bau", "Oak & Ash",
)  # fmt: skip


@dataclass(frozen=True)
class Invoice:
    invoice_no: str
    customer: str
    amount: Decimal
    currency: str
    due_on: date


@dataclass(frozen=True)
class Payment:
    reference: str | None
    payer: str
    amount: Decimal
    currency: str
    paid_on: date


def recipe(invoices: str, payments: str) -> str:
    """The recipe of invoices in a file and of payments in a database, as YAML."""
    places = {"invoices": escaped(invoices), "payments": escaped(payments)}
    # A text in JSON is one in YAML, whatever signs are in it.
    return _RECIPE.format_map({side: json.dumps(uri) for side, uri in places.items()})


def invoices(rows: int) -> str:
    """The invoices as CSV."""
    lines = ["invoice_no,customer,amount,currency,due_on"]
    lines += [
        f'{each.invoice_no},"{each.customer}",{each.amount},{each.currency},{each.due_on}'
        for each in map(_invoice, range(rows))
    ]
    return "\n".join(lines) + "\n"


def payments(connection: psycopg.Connection, rows: int) -> None:
    """The payments as the table public.payments."""
    connection.execute("DROP TABLE IF EXISTS public.payments")
    connection.execute(
        "CREATE TABLE public.payments (payment_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,"
        " reference text, payer text NOT NULL, amount numeric(14, 2) NOT NULL,"
        " currency text NOT NULL, paid_on date NOT NULL)"
    )
    copy = "COPY public.payments (reference, payer, amount, currency, paid_on) FROM STDIN"
    with connection.cursor() as cursor, cursor.copy(copy) as lines:
        for number in range(rows):
            for each in _payments(number):
                row = (each.reference, each.payer, each.amount, each.currency, each.paid_on)
                lines.write_row(row)
    connection.execute("ANALYZE public.payments")


def _invoice(number: int) -> Invoice:
    chance = Random(number)  # noqa: S311
    cents = round(chance.lognormvariate(10, 1.2))
    return Invoice(
        f"INV-{number + 1:07}",
        f"{chance.choice(_NAMES)} {chance.randrange(1, 5_000)}",
        Decimal(max(cents, 100)) / 100,
        chance.choices(("EUR", "USD", "GBP"), (8, 1, 1))[0],
        _FIRST + timedelta(days=chance.randrange(270)),
    )


def _payments(number: int) -> Iterator[Payment]:
    """The payments of an invoice: mostly the right amount, on time."""
    invoice, chance = _invoice(number), Random(~number)  # noqa: S311
    fate = chance.random()
    paid_on = invoice.due_on + timedelta(days=chance.randrange(-20, 8))

    def payment(amount: Decimal, on: date = paid_on, reference: str | None = None) -> Payment:
        wording = invoice.invoice_no if reference is None else (reference or None)
        return Payment(wording, invoice.customer, amount, invoice.currency, on)

    if fate < 0.015:
        return  # never paid
    if fate < 0.035:  # in two or three parts
        first = (invoice.amount * chance.randrange(20, 60) / 100).quantize(Decimal("0.01"))
        yield payment(first)
        yield payment(invoice.amount - first, paid_on + timedelta(days=14))
    elif fate < 0.045:  # short by a fee
        yield payment(max(invoice.amount - Decimal("7.50"), Decimal("0.50")))
    elif fate < 0.05:  # twice
        yield payment(invoice.amount)
        yield payment(invoice.amount, paid_on + timedelta(days=1))
    elif fate < 0.08:  # late
        yield payment(invoice.amount, invoice.due_on + timedelta(days=chance.randrange(20, 90)))
    elif fate < 0.10:  # without its reference
        yield payment(invoice.amount, reference="")
    elif fate < 0.15:  # typed carelessly
        yield payment(invoice.amount, reference=f" {invoice.invoice_no.lower()} ")
    else:
        yield payment(invoice.amount)
    if chance.random() < 0.004:  # somebody else's money
        yield payment(Decimal(chance.randrange(1_000, 500_000)) / 100, reference="misc")
