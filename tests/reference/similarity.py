"""How alike two texts are, from the metrics' definitions: characters, exact fractions."""

from __future__ import annotations

from fractions import Fraction

WHOLE = 10_000
LONGEST = 10_000
SWAPS_LONGEST = 1_000


def ten_thousandths(metric: str, one: str, other: str) -> int:
    """The similarity as a whole number of ten-thousandths, halves to even.

    Of texts longer than are compared by a metric, the same are alike and others are not at all.
    """
    if max(len(one), len(other)) > (SWAPS_LONGEST if metric == "damerau_levenshtein" else LONGEST):
        return WHOLE if one == other else 0
    return round(METRICS[metric](one, other) * WHOLE)


def jaro(one: str, other: str) -> Fraction:
    """A third each: matching share of one, of the other, and of matches in the same order.

    Characters match when equal and not further apart than half the longer text less one.
    """
    if not one and not other:
        return Fraction(1)
    reach = max(max(len(one), len(other)) // 2 - 1, 0)
    taken: list[int] = []
    matched_in_one = []
    for place, character in enumerate(one):
        near = range(max(0, place - reach), min(len(other), place + reach + 1))
        free = [at for at in near if other[at] == character and at not in taken]
        if free:
            taken.append(free[0])
            matched_in_one.append(character)
    if not taken:
        return Fraction(0)
    matched_in_other = [other[at] for at in sorted(taken)]
    out_of_place = sum(a != b for a, b in zip(matched_in_one, matched_in_other, strict=True))
    matches = len(taken)
    transpositions = out_of_place // 2
    return (
        Fraction(matches, len(one))
        + Fraction(matches, len(other))
        + Fraction(matches - transpositions, matches)
    ) / 3


def jaro_winkler(one: str, other: str) -> Fraction:
    """Jaro, lifted by a tenth of what is missing for each of up to four common first characters.

    Texts that are no more alike than 0.7 are not lifted, as Winkler had it.
    """
    prefix = 0
    for a, b in zip(one[:4], other[:4], strict=False):
        if a != b:
            break
        prefix += 1
    plain = jaro(one, other)
    if plain <= Fraction(7, 10):
        return plain
    return plain + Fraction(prefix, 10) * (1 - plain)


def levenshtein(one: str, other: str) -> Fraction:
    return _share(_edits(one, other), one, other)


def damerau_levenshtein(one: str, other: str) -> Fraction:
    """The true, unrestricted Damerau distance: a swapped pair may be edited again.

    "ca" becomes "abc" in two edits (swap, insert); the restricted kind would need three.
    """
    return _share(_edits_and_swaps(one, other), one, other)


METRICS = {
    "jaro": jaro,
    "jaro_winkler": jaro_winkler,
    "levenshtein": levenshtein,
    "damerau_levenshtein": damerau_levenshtein,
}


def _share(distance: int, one: str, other: str) -> Fraction:
    longest = max(len(one), len(other))
    return 1 - Fraction(distance, longest) if longest else Fraction(1)


def _edits(one: str, other: str) -> int:
    """Insertions, deletions and substitutions that make one text the other."""
    table = {(i, 0): i for i in range(len(one) + 1)} | {(0, j): j for j in range(len(other) + 1)}
    for i in range(1, len(one) + 1):
        for j in range(1, len(other) + 1):
            table[i, j] = min(
                table[i - 1, j] + 1,
                table[i, j - 1] + 1,
                table[i - 1, j - 1] + (one[i - 1] != other[j - 1]),
            )
    return table[len(one), len(other)]


def _edits_and_swaps(one: str, other: str) -> int:
    """The same with swaps: two characters may meet over what was deleted or inserted between."""
    table = {(i, 0): i for i in range(len(one) + 1)} | {(0, j): j for j in range(len(other) + 1)}
    for i in range(1, len(one) + 1):
        for j in range(1, len(other) + 1):
            swaps = [
                table[k - 1, m - 1] + (i - k - 1) + 1 + (j - m - 1)
                for k in range(1, i)
                for m in range(1, j)
                if one[k - 1] == other[j - 1] and one[i - 1] == other[m - 1]
            ]
            table[i, j] = min(
                table[i - 1, j] + 1,
                table[i, j - 1] + 1,
                table[i - 1, j - 1] + (one[i - 1] != other[j - 1]),
                *swaps,
            )
    return table[len(one), len(other)]
