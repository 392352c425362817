"""Every trap that docs/fetch-semantics.md, section 6, numbers, and the tests that show it handled.

Numbers are those of the page: 1 to 52 with 5a and 25a run through 6.1 to 6.12, 6.13 counts its own,
and sections without numbers (6.2, 6.3, 6.7, 6.10) stand as a whole.
"""

from dataclasses import dataclass
from typing import Final

import pytest

from tests.cases import docstrings_by_path

FILES: Final = {
    "addresses": "tests/protocol/test_addresses.py",
    "api_versions": "tests/protocol/test_api_versions.py",
    "clients": "tests/clients/test_clients.py",
    "conformance": "tests/core/test_conformance.py",
    "connection": "tests/core/test_connection.py",
    "cost": "tests/core/test_fetches_cost.py",
    "equivalence": "tests/integration/test_equivalence.py",
    "expand": "tests/session/test_expand.py",
    "faults": "tests/integration/test_faults.py",
    "faults_broker": "tests/integration/test_faults_broker.py",
    "fetches": "tests/core/test_fetches.py",
    "handler": "tests/session/test_handler.py",
    "handler_asks": "tests/session/test_handler_asks.py",
    "layout": "tests/protocol/test_fetch_layout.py",
    "left_alone": "tests/core/test_fetches_left_alone.py",
    "lockstep": "tests/integration/test_lockstep.py",
    "partitions": "tests/session/test_partitions.py",
    "passing": "tests/core/test_forwarding.py",
    "produce": "tests/protocol/test_produce.py",
    "python_clients": "tests/integration/test_clients_python.py",
    "requests": "tests/protocol/test_fetch_request.py",
    "responses": "tests/protocol/test_fetch_response.py",
    "savings": "tests/core/test_savings.py",
    "transports": "tests/net/test_link.py",
    "trouble": "tests/core/test_fetches_trouble.py",
}

CLIENT_FACING: Final = "of the half that plays the broker toward clients, which does not exist yet"
NUMBERS: Final = [*map(str, range(1, 53)), "5a", "25a"]
LISTS: Final = [f"6.13.{number}" for number in range(1, 10)]
SECTIONS: Final = ["6.2", "6.3", "6.7", "6.10"]


@dataclass(frozen=True, slots=True)
class Trap:
    """What a trap is about, the tests that show it handled, or why there is none."""

    about: str
    tests: str = ""
    not_here: str = ""

    def named(self) -> list[tuple[str, str]]:
        """Give (file, test) of each test."""
        found = (test.split(":") for test in self.tests.split())
        return [(FILES[file], f"test_{name}") for file, name in found]


TRAPS: Final[dict[str, Trap]] = {
    "1": Trap(
        "only plain consumers' fetches are touched",
        """left_alone:replicas_and_tags_pass_as_they_are
        left_alone:tags_of_entries_pass_as_they_are
        left_alone:versions_beyond_what_is_known_pass_as_they_are left_alone:brokers_without_sessions
        left_alone:a_fetch_that_is_not_understood_passes""",
    ),
    "2": Trap(
        "followers and controllers are left alone",
        """left_alone:replicas_and_tags_pass_as_they_are requests:replicas_are_not_taken
        requests:replica_state_is_a_tag""",
    ),
    "3": Trap(
        "v0 to v3 are not raised, and no version but 4, 5, 6 to 7",
        """left_alone:old_versions_pass_as_they_are
        fetches:full_fetches_in_and_incremental_ones_out""",
    ),
    "4": Trap(
        "4, 5, 6 as 7 and back",
        """fetches:the_raised_request_to_the_byte fetches:storage_errors_in_a_session
        expand:v4_has_no_log_start_offset requests:raised_to_v7_says_the_same
        trouble:throttled_below_sessions
        trouble:another_error_is_told_as_without_a_session""",
    ),
    "5": Trap(
        "no version is agreed on that can't be read",
        """connection:api_versions_is_cut_to_what_is_understood api_versions:v0
        api_versions:a_key_beyond_what_is_understood_is_left_out""",
    ),
    "5a": Trap("a native connection stays native", "left_alone:a_connection_that_was_native_stays_so"),
    "6": Trap(
        "70, 71, 106 never reach a client without sessions",
        """trouble:session_errors_are_not_for_the_client
        trouble:a_second_failure_goes_without_a_session
        connection:metadata_behind_a_fetch_that_is_resent""",
    ),
    "7": Trap(
        "76 and 35: sessionless from then on",
        """trouble:errors_that_a_session_forgets_end_sessions_for_good
        handler:an_error_that_goes_silent_is_not_filled_in""",
    ),
    "8": Trap(
        "3 and 103 in a session of ids",
        """handler:a_topic_gone_or_made_anew_is_had_again_in_full
        handler:what_the_full_fetch_said_too_is_genuine
        handler:an_error_that_was_mended_and_comes_back_is_new
        trouble:a_recreated_topic_is_had_again_in_full
        conformance:a_topic_deleted_and_made_anew_by_id""",
    ),
    "9": Trap(
        "a topic made anew, by name",
        """handler:by_name_3_is_what_a_full_fetch_says
        conformance:a_topic_deleted_and_made_anew_by_name""",
    ),
    "10": Trap(
        "an incremental answer with id 0",
        """trouble:an_answer_with_id_0_ends_the_session trouble:a_masked_session_error
        handler:an_incremental_answer_without_an_id""",
    ),
    "11": Trap(
        "another top-level error in a session",
        """trouble:another_error_is_told_as_without_a_session handler:another_error_asks_without_a_session""",
    ),
    "12": Trap(
        "the client's own session id stands in its answers",
        """passing:a_session_that_was_made_is_not_named_to_the_client
        passing:a_failed_request_for_a_session_is_not_for_the_client""",
    ),
    "13": Trap(
        "throttled and empty is handed on so",
        """trouble:a_throttled_answer_is_handed_on_empty trouble:a_throttled_request_for_a_session
        conformance:a_batch_that_no_quota_lets_through""",
    ),
    "14": Trap(
        "a throttled client is not read without bound; quotas go by client id",
        """connection:a_client_with_too_much_in_flight_is_not_read
        transports:a_broker_that_does_not_read_holds_back_its_client
        faults:requests_of_a_client_that_never_reads_are_not_taken_without_end
        connection:a_client_that_does_not_ask_for_versions_is_asked_for
        fetches:limits_rack_and_isolation_are_this_requests_own""",
    ),
    "15": Trap("smaller answers use less quota", not_here="what the broker counts; nothing is to be done"),
    "16": Trap(
        "one request at a time, answered in order",
        """connection:answers_come_in_the_order_of_the_requests
        connection:metadata_behind_a_parked_fetch""",
    ),
    "17": Trap(
        "correlation ids come back unchanged; a resent fetch keeps its place",
        """connection:correlation_ids_stay connection:fetches_through_a_session_keep_theirs
        connection:metadata_behind_a_fetch_that_is_resent""",
    ),
    "18": Trap("two fetches in flight", "fetches:a_second_fetch_in_flight_goes_without_the_session"),
    "19": Trap(
        "a lost answer loses the session",
        """handler_asks:a_connection_that_ends_takes_all_with_it
        conformance:a_new_connection_begins_in_full""",
    ),
    "20": Trap(
        "a native client continues its session on a new connection: it passes, and the broker knows it",
        """left_alone:a_connection_that_was_native_stays_so
        left_alone:native_sessions_pass_as_they_are""",
    ),
    "21": Trap(
        "what was opened is closed",
        """connection:a_session_is_closed_at_the_broker
        connection:closing_while_a_session_is_asked_for
        transports:a_session_is_closed_at_the_broker_when_its_client_resets""",
    ),
    "22": Trap(
        "slots are shared: a cap, and id 0 is taken for what it is",
        """cost:slots_are_shared_and_bounded cost:a_repaired_session_holds_one_slot
        savings:slots_are_bounded
        trouble:a_refused_session_is_asked_for_again_each_time_and_told_once
        conformance:a_full_cache_means_no_session_and_no_loop""",
    ),
    "23": Trap(
        "the order of a full answer",
        """expand:errors_found_before_reading_stand_last
        expand:expanded_is_direct_whatever_the_order_and_the_news""",
    ),
    "24": Trap(
        "no entry that was not asked for",
        """handler:a_full_answer_with_other_partitions
        handler:a_partition_outside_the_session
        conformance:a_thousand_pauses_and_rebalances""",
    ),
    "25": Trap(
        "a watermark of -1 is passed and not remembered",
        """handler:a_watermark_of_an_error_is_not_remembered
        conformance:recovered_at_the_same_high_watermark""",
    ),
    "25a": Trap(
        "in a session the order is the session's",
        "conformance:starvation_ends_by_the_sessions_own_order",
    ),
    "26": Trap(
        "settings that change between fetches",
        """fetches:limits_rack_and_isolation_are_this_requests_own
        fetches:another_isolation_makes_another_session
        handler_asks:every_field_of_an_entry_counts
        conformance:isolation_changes_fill_in_no_old_last_stable_offset""",
    ),
    "27": Trap(
        "versions that change",
        "fetches:another_version_makes_another_session conformance:ids_come_and_go",
    ),
    "28": Trap(
        "no delta and no forget is lost",
        """handler_asks:a_broker_that_applies_the_deltas_holds_what_was_fetched
        conformance:a_thousand_pauses_and_rebalances
        lockstep:a_client_cannot_tell_at_any_version""",
    ),
    "29": Trap(
        "preferred read replica",
        "conformance:a_preferred_replica_is_passed_and_the_partition_forgotten",
    ),
    "30": Trap(
        "min_bytes and max_wait are the client's",
        "fetches:limits_rack_and_isolation_are_this_requests_own",
    ),
    "31": Trap(
        "ApiVersions at any version",
        """connection:an_unknown_version_is_refused_as_brokers_do
        connection:a_brokers_own_refusal_passes connection:a_refusal_keeps_its_place
        api_versions:error_35_comes_in_v0_form api_versions:v3_keeps_tags_of_elements_and_of_the_body""",
    ),
    "32": Trap(
        "Produce with acks=0 is not answered",
        """connection:produce_without_acks_is_not_waited_for
        connection:acks_are_found_however_the_bytes_come produce:acks""",
    ),
    "33": Trap(
        "SASL",
        """connection:handshake_v0_goes_opaque connection:handshake_v1_keeps_its_frames
        connection:tokens_in_the_same_bytes_as_the_handshake
        connection:a_bare_gssapi_token_goes_opaque""",
    ),
    "34": Trap(
        "TLS ends sight: it is named; whose address the broker sees is for the documentation",
        "connection:tls_on_a_plaintext_port_is_named",
    ),
    "35": Trap(
        "share groups pass",
        """connection:what_is_not_understood_passes_byte_for_byte
        addresses:the_client_reads_the_message_it_should""",
    ),
    "36": Trap("telemetry passes", "connection:what_is_not_understood_passes_byte_for_byte"),
    "37": Trap(
        "what queues behind a fetch",
        """connection:metadata_behind_a_parked_fetch
        connection:answers_come_in_the_order_of_the_requests""",
    ),
    "38": Trap(
        "native clients' session errors are the broker's own",
        "left_alone:errors_of_native_sessions_reach_the_client",
    ),
    "39": Trap("full or incremental upstream for a client's session", not_here=CLIENT_FACING),
    "40": Trap("when a client's session is made", not_here=CLIENT_FACING),
    "41": Trap("a client's epoch advances on arrival", not_here=CLIENT_FACING),
    "42": Trap(
        "a client's (id, -1): today it passes, and the broker answers it",
        "left_alone:native_sessions_pass_as_they_are",
    ),
    "43": Trap("native sessions pass 1:1", "left_alone:native_sessions_pass_as_they_are"),
    "44": Trap("endpoints with a throttled answer", "passing:endpoints_of_a_throttled_answer"),
    "45": Trap(
        "what a session saves a broker and what not", not_here="a figure of the benchmarks, no behaviour"
    ),
    "46": Trap(
        "the walk over a request",
        """requests:uniform_topics_give_what_the_general_walk_gives requests:one_tag_among_uniform_topics
        requests:requests_with_tags_are_noted_and_not_taken""",
    ),
    "47": Trap(
        "deltas by content, not by place",
        """fetches:a_rotated_list_is_the_same_list
        handler_asks:nothing_changed_is_nothing_sent_whatever_the_order""",
    ),
    "48": Trap(
        "a topic in several blocks",
        """handler_asks:a_topic_in_two_elements_is_no_repetition requests:topics_that_come_twice
        partitions:a_topic_that_comes_in_two_elements_is_one
        left_alone:partitions_listed_twice_pass_as_they_are""",
    ),
    "49": Trap(
        "the walk over an answer",
        """responses:live_answers_at_every_cut responses:records_are_hopped_over
        responses:build_then_walk_is_the_identity_whatever_the_chunks
        passing:endpoints_are_where_the_client_is_to_find_them""",
    ),
    "50": Trap(
        "the expanded answer",
        """expand:nothing_new expand:records_watermarks_and_errors_in_place expand:topics_of_one_shape
        expand:live_answers_are_rebuilt_to_the_byte""",
    ),
    "51": Trap(
        "lengths that change their width",
        "layout:prefix_at_every_width layout:partitions_where_counts_grow",
    ),
    "52": Trap(
        "entries are copied, what belongs to the frame is not",
        """expand:records_are_not_copied expand:throttle_time_and_tags_are_the_answers_own
        passing:a_session_that_was_made_is_not_named_to_the_client""",
    ),
    "6.13.1": Trap(
        "not eligible: passed, its place kept",
        "left_alone:replicas_and_tags_pass_as_they_are",
    ),
    "6.13.2": Trap(
        "a delta, or full with (0,0) or (old id,0)",
        """handler_asks:added_first_altered_last_forgotten_named fetches:added_altered_and_forgotten
        handler_asks:a_session_that_is_renewed_is_named_to_be_dropped""",
    ),
    "6.13.3": Trap(
        "limits, client id and version of this request",
        "fetches:limits_rack_and_isolation_are_this_requests_own",
    ),
    "6.13.4": Trap(
        "repair, twice at most",
        """trouble:session_errors_are_not_for_the_client
        trouble:a_second_failure_goes_without_a_session""",
    ),
    "6.13.5": Trap(
        "throttled",
        """trouble:a_throttled_answer_is_handed_on_empty
        handler:an_incremental_answer_thrown_away_by_a_quota""",
    ),
    "6.13.6": Trap("another error", "trouble:another_error_is_told_as_without_a_session"),
    "6.13.7": Trap(
        "3 and 103, 76 and 35",
        """trouble:a_recreated_topic_is_had_again_in_full
        trouble:errors_that_a_session_forgets_end_sessions_for_good""",
    ),
    "6.13.8": Trap(
        "else: store, advance, expand",
        """handler:an_incremental_answer_advances_the_epoch_and_fills_in
        handler:a_partition_that_the_broker_has_not_described_is_not_invented
        trouble:what_the_broker_has_not_described_is_asked_for_in_full""",
    ),
    "6.13.9": Trap(
        "how it ends, on either side",
        """connection:a_session_is_closed_at_the_broker
        transports:when_the_broker_closes_the_client_gets_what_is_due_and_is_closed
        faults_broker:the_broker_connection_may_be_cut_at_any_byte_of_its_answers""",
    ),
    "6.2": Trap(
        "what may be filled in",
        """conformance:an_idle_client_gets_what_it_always_got expand:nothing_new
        handler:added_while_throttled_is_not_filled_in
        fetches:a_second_fetch_in_flight_goes_without_the_session""",
    ),
    "6.3": Trap(
        "old brokers",
        """left_alone:fencing_needs_no_session_below_2_5
        conformance:fencing_in_a_session_and_without_on_old_brokers
        trouble:a_throttled_answer_of_1_1_is_a_whole_one
        conformance:null_records_pass_as_they_are_and_are_never_made_up
        lockstep:a_client_cannot_tell_at_any_version""",
    ),
    "6.7": Trap(
        "clients as seen",
        """python_clients:every_record_is_the_same_in_the_same_order
        clients:every_record_is_the_same_in_the_same_order left_alone:kafka_gos_way_of_having_no_session
        left_alone:a_client_that_floods_with_0_0
        equivalence:new_records_arrive_in_order_with_each_end_told""",
    ),
    "6.10": Trap(
        "answers that carry addresses",
        """addresses:the_client_reads_the_message_it_should addresses:node_endpoints
        addresses:unknown_tags_of_every_struct_stay
        passing:endpoints_are_where_the_client_is_to_find_them""",
    ),
}


def test_no_trap_is_missing() -> None:
    assert sorted(TRAPS) == sorted([*NUMBERS, *LISTS, *SECTIONS])


@pytest.mark.parametrize("number", TRAPS)
def test_the_tests_of_a_trap_are_there(number: str) -> None:
    trap = TRAPS[number]
    assert trap.about
    assert bool(trap.tests) is not bool(trap.not_here), "tests, or the reason why there is none"
    for path, name in trap.named():
        assert name in docstrings_by_path()[path], f"{path}::{name}"


def test_every_file_is_used() -> None:
    used = {path for trap in TRAPS.values() for path, _ in trap.named()}
    assert used == set(FILES.values())
