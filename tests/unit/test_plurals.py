from kalla.plurals import counted


def test_a_number_agrees_with_its_noun() -> None:
    assert counted(1, "row") == "1 row"
    assert counted(0, "row") == "0 rows"
    assert counted(1234, "query", "queries") == "1,234 queries"
