"""Flaws of sinks: rows lost, doubled or delivered late, slots kept, other topics read on."""

from __future__ import annotations

from tests.mutations.mutant import mutant

ROOM = "tests/integration/sinks/"
LEDGER = f"{ROOM}test_ledger.py::"
KERNEL = f"{ROOM}test_deliver_kernel.py::"
CONTROL = f"{ROOM}test_control.py::"
SCENARIOS = f"{ROOM}test_control_scenarios.py::"
RULES = f"{ROOM}test_sink_rules.py::"
FAILED = f"{ROOM}test_failed_inserts.py::"
UNIT = "tests/unit/test_sink_filters.py::"
SQL = "sinks/ledger.sql"
GIVEN_UP = f"{SCENARIOS}test_a_slot_that_is_given_up_leaves_the_group_at_once"

SINKS = (
    mutant(
        "the upper slots of a sink stay held",
        "sinks/slots/reconciling.py",
        "        await self._keeper.trim(record.resource, record.replicas)\n",
        "",
        GIVEN_UP,
        trap=11,
    ),
    mutant(
        "an insert may come after the end of its lease",
        "sinks/slots/deliveries.py",
        "min(self.seat.deadline() - time.monotonic(), self.settings.insert_seconds)",
        "self.settings.insert_seconds",
        f"{FAILED}test_no_insert_is_accepted_after_the_end_of_the_lease",
        trap=12,
    ),
    mutant(
        "offsets are marked though nothing was inserted",
        "sinks/slots/placement.py",
        "            results.append(error)\n",
        "            results.append(Facts(0, 0, 0, 0, 0, 0, None, 0.0))\n",
        f"{FAILED}test_a_range_whose_insert_failed_is_delivered_later",
        trap=13,
    ),
    mutant(
        "a commit without its epoch",
        f"{SQL}#commit",
        "  AND epoch = %(epoch)s AND next_offset",
        "  AND next_offset",
        f"{LEDGER}test_whoever_had_the_partition_before_changes_nothing",
    ),
    mutant(
        "a commit without its offset",
        f"{SQL}#commit",
        " AND next_offset = %(start)s",
        "",
        f"{LEDGER}test_a_commit_needs_its_offset_and_its_intent",
    ),
    mutant(
        "a commit without its intent",
        f"{SQL}#commit",
        " AND intent_id = %(intent_id)s",
        "",
        f"{LEDGER}test_a_commit_needs_its_offset_and_its_intent",
    ),
    mutant(
        "two intents of a partition at once",
        f"{SQL}#intend",
        " AND intent_id IS NULL",
        "",
        f"{LEDGER}test_two_intents_of_a_partition_are_never_open_at_once",
    ),
    mutant(
        "a write without its lease",
        "sinks/slots/seat.py",
        "            await leases.assert_held(connection, self.holder, self.lease)",
        "            pass",
        f"{LEDGER}test_a_write_needs_the_lease",
    ),
    mutant(
        "a stopped partition is tried again",
        f"{SQL}#extend",
        "\n  AND stopped IS NULL",
        "",
        f"{LEDGER}test_a_stopped_partition_is_neither_tried_again_nor_committed",
    ),
    mutant(
        "a commit of a stopped partition",
        f"{SQL}#commit",
        " AND stopped IS NULL",
        "",
        f"{LEDGER}test_a_stopped_partition_is_neither_tried_again_nor_committed",
    ),
    mutant(
        "a recovery that forgets the deadline of its own insert",
        "sinks/ledger.py",
        "    return replace(partition, intent_deadline=deadline, intent_part=part)\n",
        "    return replace(partition, intent_part=part)\n",
        f"{LEDGER}test_a_second_recovery_knows_that_the_insert_of_the_first_may_still_arrive",
    ),
    mutant(
        "what is behind a gap is guessed",
        f"{SQL}#skip_into_intent",
        "intent_part = intent_end, ",
        "",
        f"{LEDGER}test_what_is_behind_a_gap_is_still_in_flight",
    ),
    mutant(
        "a range in parts before its insert is settled",
        "sinks/slots/deliveries.py",
        "            # Parts have other tokens than the whole: it must not arrive any more.\n"
        "            if not settled:\n",
        "            if False:\n",
        f"{LEDGER}test_a_range_that_was_too_slow_is_delivered_in_parts",
    ),
    mutant(
        "a name that is used again uses its generations again",
        "sinks/store.py",
        '    await connection.execute(sql.keep_generations, {"pipeline": pipeline})\n',
        "",
        f"{LEDGER}test_a_pipeline_of_a_name_that_was_used_before_uses_no_generation_again",
    ),
    mutant(
        "a seek keeps the generation",
        f"{SQL}#seek",
        "generation = generation + 1",
        "generation = generation",
        f"{LEDGER}test_a_seek_raises_the_generation_and_not_while_a_range_is_on_its_way",
    ),
    mutant(
        "a token without the generation",
        "sinks/plan.py",
        "/g{generation}/m{mapping_version}",
        "/m{mapping_version}",
        f"{UNIT}test_a_token_changes_with_the_rules_the_generation_and_the_topic",
    ),
    mutant(
        "a token without the version of the rules",
        "sinks/plan.py",
        "/g{generation}/m{mapping_version}",
        "/g{generation}",
        f"{UNIT}test_a_token_changes_with_the_rules_the_generation_and_the_topic",
    ),
    mutant(
        "filters that are not versioned",
        "sinks/store.sql#put_mapping",
        "(columns, filters, tombstones)\n        = (%(columns)s::jsonb, %(filters)s::jsonb, "
        "%(tombstones)s)",
        "(columns, tombstones)\n        = (%(columns)s::jsonb, %(tombstones)s)",
        f"{LEDGER}test_rules_are_a_new_version_with_every_change_and_only_then",
    ),
    mutant(
        "no probe of a recovered range",
        "sinks/kernel.py",
        "if delivery.recovered and delivery.probe:",
        "if False:",
        f"{KERNEL}test_a_recovered_range_that_is_there_is_not_inserted_again[local]",
    ),
    mutant(
        "rows before dead letters",
        "sinks/kernel.py",
        "        # Dead letters first: when the rows have arrived, the range is complete.\n",
        "        self._insert(self._table, rows, transform.input_types, '_offset', row_offsets,\n"
        "                     delivery, '', deadline)\n",
        f"{KERNEL}test_no_row_is_inserted_before_its_range_s_dead_letters[local]",
    ),
    mutant(
        "a repair before the earlier insert is settled",
        "sinks/kernel.py",
        "            if missing and not delivery.settled:\n",
        "            if False:\n",
        f"{KERNEL}test_of_a_recovered_range_only_what_is_missing_is_inserted[local]",
    ),
    mutant(
        "no deadline inside the insert",
        "sinks/servers/clickhouse_client.py",
        "toUnixTimestamp64Micro(nowInBlock64(6)) > {int(deadline * 1e6)}",
        "0 > {int(deadline * 1e6)}",
        f"{KERNEL}test_a_late_insert_is_refused_by_the_server[local]",
    ),
    mutant(
        "no token of an insert",
        "sinks/servers/clickhouse_client.py",
        '            "insert_deduplication_token": token,\n',
        '            "insert_deduplication_token": f"{token}-{time.monotonic_ns()}",\n',
        f"{KERNEL}test_the_same_token_inserts_once[local]",
    ),
    mutant(
        "no comparison of topic ids",
        "sinks/slots/carrier.py",
        "        if held.topic_id != self._topic.topic_id:\n",
        "        if False:\n",
        f"{CONTROL}test_a_topic_that_was_made_anew_is_not_read_on",
        also=(
            (
                "sinks/slots/carrier.py",
                "            elif held.topic_id != self._topic.topic_id:\n",
                "            elif False:\n",
            ),
        ),
    ),
    mutant(
        "offsets that are gone are jumped over",
        "sinks/slots/carrier.py",
        "        elif held.next_offset < low and held.intent_id is None:",
        "        elif False:",
        f"{CONTROL}test_offsets_that_retention_removed_stop_the_partition_until_skipped",
        also=(
            (
                "sinks/servers/reader.py",
                '"auto.offset.reset": "error"',
                '"auto.offset.reset": "earliest"',
            ),
        ),
    ),
    mutant(
        "no check of one result a message",
        "sinks/rows/transform.py",
        "        _check(messages, result)\n",
        "",
        f"{UNIT}test_the_check_of_one_result_a_message_finds_one_that_was_lost_or_doubled",
    ),
    mutant(
        "no comparison of offsets between documents and messages",
        "sinks/rows/json_columns.py",
        "        if found.null_count or not np.array_equal(found.to_numpy(), messages.offsets):\n",
        "        if False:\n",
        "tests/unit/test_sink_json_columns.py::test_a_message_of_two_documents_is_one_dead_letter",
    ),
    mutant(
        "a row that the filter cannot judge is dropped",
        "sinks/rows/filters.py",
        '                faults[start] = f"the filter cannot be evaluated: {why}"\n',
        "",
        f"{UNIT}test_a_row_that_the_filter_cannot_judge_is_a_dead_letter_and_the_others_go_on",
    ),
    mutant(
        "no unsubscribe before close",
        "sinks/slots/member.py",
        "            self._consumer.unsubscribe()\n",
        "",
        GIVEN_UP,
    ),
    mutant(
        "a replay without a probe",
        "sinks/records/letters.py",
        "        missing = [row for row, offset in enumerate(offsets) if offset not in there]\n",
        "        missing = list(range(len(offsets)))\n",
        f"{RULES}test_a_chunk_that_is_replayed_again_adds_nothing",
    ),
    mutant(
        "an old intent without provenance is guessed",
        "sinks/slots/deliveries.py",
        "        if not self.table.probe and not in_window:\n",
        "        if False:\n",
        f"{RULES}test_without_provenance_an_old_intent_stops_as_uncertain",
    ),
)
