"""Which tests `make test` runs: those of one process, and one short run of each part on real
surroundings. `make test-all` runs the others.

A test of `make test` passes on a machine that is three times overloaded: it waits for conditions,
and asks nothing about time.
"""

from collections.abc import Mapping
from typing import Final
from zlib import crc32

MOST_SECONDS: Final = 5.0
"""A test that took longer, as `tests/durations.json` has it, is for `make test-all`."""
ONE_IN: Final = 10
"""One of so many reference calls is compared in `make test`."""

_SURROUNDINGS: Final = ("tests/browser/", "tests/drills/", "tests/integration/")
"""Tests with a real Kafka, a real browser, real processes. `make test` runs the short ones below
alone.
"""
_REFERENCE: Final = "tests/conformance/test_contexts.py"
_OF_TIME: Final = (
    "/test_loop_held.py",
    "tests/redaction/test_adversarial.py",
    "::test_a_command_loads_no_library_that_it_does_not_use",
    "::test_a_failure_is_known_by_what_the_result_says",
    "::test_a_role_loads_nothing_of_the_others",
    "::test_a_row_costs_the_same_in_a_full_table_as_in_a_small_one",
    "::test_a_page_of_half_an_hour_is_drawn_in_less_than_half_a_second",
    "::test_probes_are_answered_while_a_large_page_is_made_and_sent",
    "::test_whatever_a_tool_returns_its_event_can_be_read_and_costs_little",
)
"""Tests that ask how long something takes, or what a start loads, which is most of its time."""
_SHORT_RUNS: Final = (
    "tests/browser/test_console_page.py::test_what_a_call_says_stays_text",
    "tests/browser/test_report_page.py::test_it_needs_no_script",
    "tests/drills/test_recordings.py",
    "tests/golden/",
    "tests/integration/test_commands_on_topics.py::test_a_call_is_found_and_shown",
    "tests/integration/test_console.py::test_the_context_of_a_running_call_is_that_of_its_events_so_far",
    "tests/integration/test_doctor.py::test_while_calls_run",
    "tests/integration/test_goals_topic.py::test_a_call_finds_its_goals_on_the_topic",
    "tests/integration/test_history.py::test_a_call_is_labelled_and_forgotten_for_good",
    "tests/integration/test_ingest.py::test_posted_events_become_a_measured_call",
    "tests/integration/test_judge.py::test_a_question_is_answered_and_counted",
    "tests/integration/test_mcp.py::test_an_assistant_asks_about_the_calls_of_a_folder",
    "tests/integration/test_monitor.py",
    "tests/integration/test_otlp.py::test_a_receiver_that_refuses_for_a_while",
    "tests/integration/test_own_bot.py",
    "tests/integration/test_pipecat_readme.py::test_in_the_constructor",
    "tests/integration/test_process.py::test_kill_9_loses_nothing_and_doubles_a_commit_interval_at_most",
    "tests/integration/test_quarantine.py::test_a_refused_record_comes_into_its_call_once",
    "tests/integration/test_run_and_replay.py::test_a_recorded_call_comes_out_as_metrics",
    "tests/integration/test_sequencer.py::test_after_kill_9_a_standby_goes_on_and_nothing_is_lost_or_doubled",
    "tests/integration/test_serve.py::test_a_call_is_measured_and_is_there_after_a_restart",
    "tests/integration/test_transcripts.py::test_each_call_has_one_transcript_and_it_is_the_command_s",
    "tests/integration/test_two_homes.py::test_what_killed_processes_decided_is_what_one_would_have",
)


def is_short(nodeid: str, seconds: Mapping[str, float]) -> bool:
    """Whether `make test` runs a test.

    Args:
        nodeid: Its name, as pytest has it.
        seconds: How long tests took that are not fast, by name.
    """
    if nodeid.startswith(_SHORT_RUNS):
        return True
    if nodeid.startswith(_SURROUNDINGS) or any(each in nodeid for each in _OF_TIME):
        return False
    if nodeid.startswith(_REFERENCE):
        return crc32(nodeid.encode()) % ONE_IN == 0
    return seconds.get(nodeid, 0) < MOST_SECONDS
