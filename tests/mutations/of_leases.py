"""Flaws of leases: slots held twice, kept too long, given up for others, counted anew."""

from __future__ import annotations

from tests.mutations.mutant import mutant

SQL = "work/state/leases.sql"
RELEASE = "test_leases.py::test_a_release_of_what_one_no_longer_holds_changes_nothing"
RENEWAL = "test_leases.py::test_a_lease_that_another_took_is_not_renewed"
EPOCH = "test_leases.py::test_an_epoch_survives_release_and_expiry"
WRITE = "test_leases.py::test_a_write_under_a_lease_keeps_others_from_taking_the_slot"

LEASES = (
    mutant(
        "a release without its epoch",
        f"{SQL}#release",
        " AND epoch = %(epoch)s",
        "",
        RELEASE,
        trap=9,
    ),
    mutant(
        "a release of another's slot",
        f"{SQL}#release",
        " AND holder = %(holder)s",
        "",
        RELEASE,
        trap=9,
    ),
    mutant(
        "a renewal without its epoch",
        f"{SQL}#renew",
        "USING (resource, slot, epoch), moment",
        "USING (resource, slot), moment",
        RENEWAL,
        trap=9,
    ),
    mutant(
        "a renewal of another's slot",
        f"{SQL}#renew",
        "WHERE leases.holder = %(holder)s AND",
        "WHERE",
        RENEWAL,
        trap=9,
    ),
    mutant(
        "an epoch begins anew after a release",
        f"{SQL}#release",
        "SET holder = NULL, until = NULL",
        "SET holder = NULL, until = NULL, epoch = 0",
        EPOCH,
    ),
    mutant(
        "a released slot is forgotten",
        f"{SQL}#release",
        "UPDATE kalla.leases SET holder = NULL, until = NULL",
        "DELETE FROM kalla.leases",
        "test_fences.py::test_no_epoch_is_ever_issued_twice",
    ),
    mutant(
        "an acquisition does not raise the epoch",
        f"{SQL}#acquire",
        " epoch = epoch + 1,",
        "",
        EPOCH,
    ),
    mutant(
        "an epoch begins anew, before the model",
        f"{SQL}#release",
        "SET holder = NULL, until = NULL",
        "SET holder = NULL, until = NULL, epoch = 0",
        "test_model.py::test_leases_do_what_the_model_does",
    ),
    mutant(
        "slots above the number of replicas are taken",
        f"{SQL}#acquire",
        " AND slot < %(replicas)s",
        "",
        "test_leases.py::test_slots_above_a_lowered_number_of_replicas_are_not_taken_again",
        trap=11,
    ),
    mutant(
        "the last free slot is taken first",
        f"{SQL}#acquire",
        "ORDER BY slot\n",
        "ORDER BY slot DESC\n",
        "test_leases.py::test_the_first_free_slot_is_taken",
        trap=11,
    ),
    mutant(
        "a lease that ended is renewed",
        f"{SQL}#renew",
        " AND leases.until > moment.now",
        "",
        "test_leases.py::test_a_lease_that_ended_is_not_renewed_though_nobody_took_it",
        trap=12,
    ),
    mutant(
        "a lease that ended is never free",
        f"{SQL}#acquire",
        "(holder IS NULL OR until <= moment.now)",
        "holder IS NULL",
        "test_leases.py::test_a_lease_ends_when_it_is_not_renewed",
    ),
    mutant(
        "a live lease is taken",
        f"{SQL}#acquire",
        "(holder IS NULL OR until <= moment.now)",
        "(true OR until <= moment.now)",
        "test_leases.py::test_the_first_free_slot_is_taken",
    ),
    mutant(
        "a write under a lease that ended is accepted",
        f"{SQL}#holds",
        "  AND until > kalla.clock()\n",
        "",
        "test_leases.py::test_a_lease_that_ended_is_not_renewed_though_nobody_took_it",
        trap=12,
    ),
    mutant(
        "a write under a lease locks nothing",
        f"{SQL}#holds",
        "\nFOR KEY SHARE",
        "",
        WRITE,
        trap=12,
    ),
    mutant(
        "a write under a lease holds up its renewal",
        f"{SQL}#holds",
        "FOR KEY SHARE",
        "FOR SHARE",
        "test_leases.py::test_a_write_under_a_lease_does_not_hold_up_its_renewal",
        trap=12,
    ),
    mutant(
        "an acquisition waits for the neighbour's slot",
        f"{SQL}#prepare",
        "\nWHERE NOT EXISTS (SELECT FROM kalla.leases WHERE resource = %(resource)s"
        " AND slot = number)",
        "",
        "test_leases.py::test_two_acquisitions_at_once_get_two_slots",
    ),
    mutant(
        "a cap counts nothing",
        f"{SQL}#acquire",
        "mine.until > moment.now) < %(cap)s",
        "mine.until > moment.now) < %(cap)s + 1",
        "test_leases.py::test_a_cap_holds_over_all_resources",
    ),
    mutant(
        "a cap does not hold for two at once",
        "work/state/leases.py",
        "        await connection.execute(sql.lock_holder, facts)\n",
        "        pass\n",
        "test_leases.py::test_a_cap_holds_though_its_worker_acquires_twice_at_once",
    ),
)
