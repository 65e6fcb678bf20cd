"""The functions that user SQL may call, by their Spark names.

Listed are those whose result depends on their arguments alone and is no longer than these allow.
"""

from __future__ import annotations

from typing import Final


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


NUMBERS: Final = _names(
    """
    abs bround cbrt ceil ceiling exp floor format_number greatest hypot isnan least ln log log10
    log1p log2 mod nanvl negative pmod positive pow power round sign signum sqrt
    try_add try_divide try_mod try_multiply try_subtract width_bucket
    """
)

TEXTS: Final = _names(
    """
    array_contains ascii bit_length btrim char_length character_length chr concat concat_ws
    contains crc32 element_at endswith find_in_set get_json_object hash hex initcap instr
    lcase left len length levenshtein locate lower lpad ltrim md5 octet_length overlay
    position regexp_count regexp_extract regexp_instr regexp_like regexp_replace regexp_substr
    replace reverse right rpad rtrim sha1 sha2 soundex split split_part startswith substr
    substring substring_index to_number translate trim try_element_at try_to_number ucase
    upper xxhash64
    """
)

DATES: Final = _names(
    """
    add_months date_add date_diff date_format date_from_unix_date date_part date_sub date_trunc
    dateadd datediff datepart day dayname dayofmonth dayofweek dayofyear extract from_unixtime
    from_utc_timestamp hour last_day make_date make_timestamp minute month monthname
    months_between next_day quarter second timestamp_micros timestamp_millis timestamp_seconds
    timestampadd timestampdiff to_date to_timestamp to_unix_timestamp to_utc_timestamp trunc
    try_make_timestamp try_to_date try_to_timestamp unix_date unix_micros unix_millis unix_seconds
    weekday weekofyear year
    """
)

CHOICES: Final = _names(
    "coalesce equal_null if ifnull isnotnull isnull nullif nullifzero nvl nvl2 zeroifnull"
)

CASTS: Final = _names("bigint boolean cast date decimal double int string try_cast")

AGGREGATES: Final = _names(
    """
    avg bool_and bool_or count count_if every max mean median min percentile some std stddev
    stddev_pop stddev_samp sum try_avg try_sum var_pop var_samp variance
    """
)

# Without an order of their rows these would answer by chance, so each needs ORDER BY.
ORDERED: Final = _names(
    """
    cume_dist dense_rank first_value lag last_value lead nth_value ntile percent_rank rank
    row_number
    """
)

FUNCTIONS: Final = NUMBERS | TEXTS | DATES | CHOICES | CASTS | AGGREGATES | ORDERED

# With three arguments the first one is a unit, written without quotes.
WITH_UNIT: Final = _names("date_add date_diff dateadd datediff timestampadd timestampdiff")

# Which argument is a length, which a number of decimal places, and which a regular expression.
LENGTHS: Final = {"lpad": 1, "rpad": 1}
PLACES: Final = dict.fromkeys(_names("bround ceil ceiling floor format_number round"), 1)
PATTERNS: Final = dict.fromkeys(
    _names(
        "regexp_count regexp_extract regexp_instr regexp_like regexp_replace regexp_substr split"
    ),
    1,
)

# Those that look for the second text at every place of the first, or the other way round.
SEARCHES: Final = _names(
    """
    btrim contains find_in_set instr levenshtein locate ltrim position replace rtrim split_part
    substring_index trim
    """
)

# Those that make a text of texts, whichever letters these have.
MADE_OF_TEXTS: Final = _names(
    """
    btrim chr concat concat_ws date_format element_at from_unixtime get_json_object initcap lcase
    left lower lpad ltrim overlay regexp_extract regexp_replace regexp_substr replace reverse right
    rpad rtrim split split_part substr substring substring_index translate trim try_element_at
    ucase upper
    """
)

# Those whose result is short, however long their arguments are.
SHORT: Final = (
    NUMBERS
    | DATES
    | _names(
        """
        array_contains ascii bit_length char_length character_length chr contains count count_if
        crc32 endswith find_in_set hash instr len length levenshtein locate md5 octet_length
        position regexp_count regexp_instr regexp_like sha1 sha2 soundex startswith to_number
        try_to_number xxhash64
        """
    )
) - _names("greatest least nanvl date_format from_unixtime")

# Spark takes these for functions where no column has the name, quoted or not.
WITHOUT_PARENTHESES: Final = _names(
    """
    curdate current_catalog current_database current_date current_schema current_time
    current_timestamp current_timezone current_user grouping__id localtimestamp now
    session_user user
    """
)

# What does the same, or nearly, for some of those below.
INSTEAD: Final = {
    name: instead
    for names, instead in (
        (
            "now current_date current_timestamp current_time curdate localtimestamp",
            "write the date, or ${name} and declare name in the recipe's parameters",
        ),
        ("unix_timestamp", "use to_unix_timestamp"),
        (
            "any_value first last max_by min_by mode",
            "use min or max, or first_value with OVER (… ORDER BY …)",
        ),
        ("collect_list collect_set array_agg listagg string_agg", "use count, min, max or sum"),
        ("approx_percentile percentile_approx", "use percentile"),
        ("rand random randn randstr uniform uuid", "use md5 or hash of the row's key"),
        ("monotonically_increasing_id", "use row_number() with OVER (… ORDER BY …)"),
        ("repeat space array_repeat", "use lpad or rpad"),
        (
            """
            explode explode_outer posexplode posexplode_outer inline inline_outer stack sequence
            """,
            "let the source have a row for each value",
        ),
        ("format_string printf", "use concat, lpad or format_number"),
        ("json_tuple array struct map", "let the source have a column for each value"),
        (
            """
            current_user user session_user current_catalog current_database current_schema
            current_timezone version java_version input_file_name
            """,
            "write the value itself, as a text",
        ),
        ("read_files read_kafka range", "read left_src and right_src alone"),
        ("reflect java_method try_reflect transform", "use the functions of Spark SQL"),
    )
    for name in names.split()
}

# Functions people do ask for, and why they cannot have them.
REASONS: Final = {
    name: reason
    for names, reason in (
        (
            """
            rand random randn randstr uniform uuid shuffle monotonically_increasing_id
            spark_partition_id now current_date current_timestamp current_time curdate
            localtimestamp unix_timestamp any_value first last collect_list collect_set
            array_agg mode listagg string_agg max_by min_by approx_percentile percentile_approx
            """,
            "its result may differ from run to run",
        ),
        (
            """
            reflect java_method try_reflect ai_query http_request read_files read_kafka
            input_file_name input_file_block_start input_file_block_length transform
            """,
            "SQL here reaches nothing but the given tables",
        ),
        (
            """
            current_user user session_user current_catalog current_database current_schema
            current_timezone version java_version secret getvariable
            """,
            "it tells about the server",
        ),
        (
            """
            repeat space sequence array_repeat explode explode_outer posexplode
            posexplode_outer inline inline_outer stack range json_tuple format_string printf
            """,
            "its result may be of any size",
        ),
    )
    for name in names.split()
}
