"""Write ledger.xlsx: the invoices of ledger.csv as an ERP exports them, with a title above
the header, and dates and amounts as cells. Run it from this folder; the workbook is committed.
"""

from __future__ import annotations

import csv
from datetime import date, datetime
from pathlib import Path

import xlsxwriter

HERE = Path(__file__).parent


def main() -> None:
    with (HERE / "ledger.csv").open(encoding="utf-8", newline="") as opened:
        rows = list(csv.DictReader(opened))
    options = {"in_memory": True}
    with xlsxwriter.Workbook(str(HERE / "ledger.xlsx"), options) as book:
        book.set_properties({"created": datetime(2026, 6, 15)})  # noqa: DTZ001 -- the same file again
        book.add_worksheet("Notes").write(0, 0, "Exported from the ERP on 2026-06-15")
        sheet = book.add_worksheet("Open items")
        day = book.add_format({"num_format": "yyyy-mm-dd"})
        money = book.add_format({"num_format": "#,##0.00"})
        sheet.write(0, 0, "Open items, Beispiel Handels GmbH")
        sheet.write_row(2, 0, ["Invoice no", "Customer", "Amount", "Currency", "Due on"])
        for place, row in enumerate(rows, 3):
            sheet.write(place, 0, row["invoice_no"])
            sheet.write(place, 1, row["customer"])
            sheet.write(place, 2, float(row["amount"]), money)
            sheet.write(place, 3, row["currency"])
            sheet.write(place, 4, date.fromisoformat(row["due_on"]), day)
        sheet.set_column(0, 4, 22)


if __name__ == "__main__":
    main()
