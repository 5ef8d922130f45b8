"""The doctor looks at goals, judge, what roles say of themselves, inputs and quarantine."""

from pathlib import Path
from typing import Any

import pytest
from aiokafka import TopicPartition

from streamer.cluster.facts import LogBounds
from streamer.doctor.examination import (
    goals_and_finding,
    judge_finding,
    process_findings,
    silence_finding,
    state_findings,
)
from streamer.doctor.findings import Finding, Verdict
from streamer.facts import installed_version
from streamer.roles.state import ProcessState, deciding_settings
from streamer.settings.all_settings import Settings, load_settings
from tests.support.fakes.http_answers import Answer, Request, answering

KEY = "key-of-tests"
JUDGE_KEY = {"OPENAI_API_KEY": "key"}
JUDGED = "id: one\nsubgoals:\n  - {id: a, details: d, check: {kind: judge}}\n"
CODED = "id: two\nsubgoals:\n  - {id: a, details: d, check: {kind: tool_called, tool: t}}\n"


def found(environment: dict[str, str] | None = None) -> dict[str, Finding]:
    settings = load_settings(None, {}, environment or {})
    sets, goals = goals_and_finding(settings)
    return {"goals": goals, "judge": judge_finding(settings, sets)}


def goals_in(folder: Path, **files: str) -> dict[str, str]:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return {"CALLGAUGE_GOALS__FOLDER": str(folder)}


def test_without_goals_and_judge_all_is_well() -> None:
    findings = found()
    assert [finding.verdict for finding in findings.values()] == [Verdict.OK, Verdict.OK]
    assert findings["judge"].seen == "off: it has no key"
    assert (
        found({"CALLGAUGE_GOALS__READS_TOPIC": "true"})["goals"].seen == "the topic goals is read"
    )


def test_a_folder_with_which_run_would_not_start_is_wrong(tmp_path: Path) -> None:
    finding = found({"CALLGAUGE_GOALS__FOLDER": str(tmp_path / "none")})["goals"]
    assert finding.verdict is Verdict.WRONG
    assert str(tmp_path / "none") in finding.seen
    assert "The evaluator would not start" in finding.seen


def test_broken_doubled_and_missing_goals_are_warnings(tmp_path: Path) -> None:
    environment = goals_in(tmp_path)
    assert found(environment)["goals"].seen == f"no goal file in {tmp_path}"
    goals_in(tmp_path, one=CODED)
    assert (found(environment)["goals"].verdict, found(environment)["goals"].seen) == (
        Verdict.OK,
        f"1 goal set in {tmp_path}",
    )
    goals_in(tmp_path, same=CODED)
    assert found(environment)["goals"].verdict is Verdict.WARNING
    goals_in(tmp_path, same="id: [")
    finding = found(environment)["goals"]
    assert finding.verdict is Verdict.WARNING
    assert f"broken and not used: {tmp_path / 'same.yaml'}" in finding.seen
    assert "callgauge goals check" in finding.what_to_do


def test_a_judge_that_is_waited_for_and_off_is_a_warning(tmp_path: Path) -> None:
    judged = goals_in(tmp_path, one=JUDGED)
    assert (
        found(judged)["judge"].seen == "1 subgoal can only be judged by a model, and it has no key"
    )
    assert found({"CALLGAUGE_GOALS__ASKS_JUDGE": "true"})["judge"].verdict is Verdict.WARNING
    off = judged | JUDGE_KEY | {"CALLGAUGE_JUDGE__ENABLED": "false"}
    assert found(off)["judge"].what_to_do == "Set judge.enabled=true."
    assert found(judged | JUDGE_KEY)["judge"] == Finding(
        "judge", Verdict.OK, "on: gpt-4.1 at https://api.openai.com/v1"
    )


NOW_MS = 1_790_000_000_000


def state(**fields: Any) -> bytes:
    given = ProcessState(
        version=installed_version(),
        roles=["evaluator", "sequencer"],
        started_ms=NOW_MS - 7_200_000,
        problems=[],
        settings={},
        counts={},
        gauges={},
        not_understood={},
    )
    return given.model_copy(update=fields).model_dump_json().encode()


def said_of(
    body: bytes, status: int = 200, settings: Settings | None = None
) -> list[tuple[str, Verdict, str, str]]:
    found = state_findings(settings or Settings(), "there:8080", status, body, NOW_MS)
    return [(each.check, each.verdict, each.seen, each.what_to_do) for each in found]


def test_a_process_that_is_well_has_one_line() -> None:
    own = deciding_settings(Settings())
    ((check, verdict, seen, _),) = said_of(
        state(settings=own, counts={"callgauge_quarantined_total": {}})
    )
    assert (check, verdict) == ("roles", Verdict.OK)
    assert seen.startswith("evaluator, sequencer at there:8080, version ")
    assert seen.endswith("every part does its work, since it started 2 h ago")


def test_what_a_process_says_of_itself_is_told_with_the_remedy() -> None:
    counts = {
        "callgauge_quarantined_total": {"pipecat invalid_event": 7, "audit time_out_of_bounds": 1},
        "callgauge_ingest_events_refused_total": {"": 2},
        "callgauge_ingest_requests_total": {
            "acme limited": 3,
            "acme accepted": 90,
            " too_large": 4,
        },
    }
    told = said_of(
        state(
            problems=["evaluator: not reading the log"],
            version="0.0.1",
            counts=counts,
            settings={"limits.idle_ms": 1_000},
            not_understood={
                "pipecat: speech_event of kind 'bot_stopped'": "Say bot_speech_stopped."
            },
        )
    )
    checks = ["roles", "version", "settings", "counters", "counters", "counters", "records"]
    assert [check for check, *_ in told] == checks
    assert [verdict for _, verdict, *_ in told] == [Verdict.WRONG] + [Verdict.WARNING] * 6
    seen = [each[2] for each in told]
    assert seen[0] == "evaluator, sequencer at there:8080: evaluator: not reading the log"
    assert seen[2] == "at there:8080 limits.idle_ms is 1000, here 300000"
    assert seen[3] == (
        "8 records refused since it started 2 h ago: pipecat invalid_event 7, audit "
        "time_out_of_bounds 1"
    )
    assert seen[4] == "2 posted events refused since it started 2 h ago: in all 2"
    assert seen[5] == "7 requests refused since it started 2 h ago: too_large 4, acme limited 3"
    assert told[6][2:] == (
        "not understood since it started 2 h ago: pipecat: speech_event of kind 'bot_stopped'",
        "Say bot_speech_stopped.",
    )


def test_a_role_that_is_behind_is_told() -> None:
    behind = {
        "callgauge_sequencer_known_behind_seconds": {"": 60.4},
        "callgauge_sequencer_inputs_left_out": {"": 0.0},
    }
    told = said_of(
        state(gauges=behind | {"callgauge_sequencer_lag_messages": {"audit.events": 3.0}})
    )
    assert [check for check, *_ in told] == ["roles", "log"]
    assert "sequencer at there:8080: 60 seconds behind is what the log knows" in told[1][2]
    told = said_of(state(gauges={"callgauge_sequencer_known_behind_seconds": {"": 60.0}}))
    assert [check for check, *_ in told] == ["roles"]
    told = said_of(state(gauges={"callgauge_sequencer_lag_messages": {"audit.events": 200_000.0}}))
    assert told[1][2].endswith("200000 records to append to the log, of audit.events")


@pytest.mark.parametrize(("seconds", "is_told"), [(1.0, False), (-3.0, True), (3.0, True)])
def test_a_sequencer_whose_clock_is_another_one_tells_it(seconds: float, *, is_told: bool) -> None:
    gauges = {"callgauge_sequencer_clock_difference_seconds": {"": seconds}}
    told = said_of(state(gauges=gauges))[1:]
    assert [what_to_do for *_, what_to_do in told] == ["Set all clocks by NTP."] * is_told


@pytest.mark.parametrize("body", [b"hello", b"{}", b"[]", b"\xff", b'{"version": 1}'])
def test_another_program_is_told_apart(body: bytes) -> None:
    ((_, verdict, seen, _),) = said_of(body)
    assert (verdict, seen) == (Verdict.WARNING, "another program answers at there:8080")


def test_only_the_settings_that_decide_are_told_and_no_secret() -> None:
    told = deciding_settings(
        Settings.model_validate({"judge": {"api_key": KEY}, "ingest": {"token": KEY}})
    )
    assert {name.partition(".")[0] for name in told} == {"limits", "goals", "redaction"}
    assert KEY not in str(told)


@pytest.mark.parametrize("with_scheme", [True, False])
async def test_the_state_is_asked_for_with_the_token_of_the_settings(*, with_scheme: bool) -> None:
    def answer(request: Request) -> Answer:
        allowed = (
            request.headers.get("authorization") == "Bearer of-tests" and request.path == "/state"
        )
        return Answer(200, state()) if allowed else Answer(401, b"")

    with answering(answer) as address:
        place = address.rstrip("/") if with_scheme else address.partition("//")[2].rstrip("/")
        settings = Settings.model_validate({"http_token": "of-tests"})
        assert (await process_findings(settings, place, is_named=True))[0].verdict is Verdict.OK
        (other,) = await process_findings(Settings(), place, is_named=True)
    assert (other.verdict, other.seen) == (Verdict.UNKNOWN, f"{place} wants another token")


@pytest.mark.parametrize(("is_named", "verdict"), [(True, Verdict.WRONG), (False, Verdict.UNKNOWN)])
@pytest.mark.parametrize("address", ["127.0.0.1:1", "no port:x", ""])
async def test_nobody_who_answers_is_wrong_only_where_somebody_should(
    address: str, verdict: Verdict, *, is_named: bool
) -> None:
    (finding,) = await process_findings(Settings(), address, is_named=is_named)
    assert (finding.verdict, "--roles-at" in finding.what_to_do) == (verdict, True)


PIPECAT, ELEVENLABS = (
    TopicPartition("x.pipecat.events", 0),
    TopicPartition("x.elevenlabs.events", 0),
)


@pytest.mark.parametrize(
    ("ends", "heard", "verdict", "said"),
    [
        (
            (0, 0),
            [],
            Verdict.WARNING,
            "no event in x.elevenlabs.events, x.pipecat.events: none was sent",
        ),
        ((9, 0), [PIPECAT], Verdict.OK, "events came in the last 10 min in x.pipecat.events"),
        (
            (9, 9),
            [PIPECAT],
            Verdict.WARNING,
            "no event in x.elevenlabs.events for 10 min or longer",
        ),
    ],
)
def test_an_input_without_events_is_told(
    ends: tuple[int, int], heard: list[TopicPartition], verdict: Verdict, said: str
) -> None:
    bounds = {tp: LogBounds(0, end) for tp, end in zip((PIPECAT, ELEVENLABS), ends, strict=True)}
    finding = silence_finding(bounds, heard)
    assert (finding.check, finding.verdict, finding.seen.partition(", or ")[0]) == (
        "producers",
        verdict,
        said,
    )
