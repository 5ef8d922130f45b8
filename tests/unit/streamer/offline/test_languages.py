"""A call whose words are understood has no word errors, however its numbers are written, in each
language of EVA and as a record too.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from streamer.notebook import score
from streamer.offline.contexts import eva_metrics_of
from streamer.recordings.reader import read_recordings

T0_MS = 1_790_000_000_000
UNDERSTOOD = [
    ("en", "I need the first flight, the other ones", "I need the 1st flight, the other 1s", 0.0),
    ("de", "Zweiundzwanzig Koffer, hm, am dritten", "22 Koffer am 3.", 0.0),
    ("es", "La primera, o sea, treinta y cinco", "La 1ª 35", 0.0),
    ("fr", "Quatre-vingt-dix-sept euros, euh, mille", "97 euros, 1.000", 0.0),
    ("fr-CA", "Trois mille valises pour Mme Roy", "3 000 valises pour madame Roy", 0.0),
    ("hi", "मुझे इक्कीस टिकट चाहिए", "मुझे 21 टिकट चाहिए", 0.0),
    ("ja", "えーと、三百二十一便です", "321便です", 0.0),
    ("zh", "嗯\uff0c一万两千三百块", "12300块", 0.0),
    ("ko", "음, 스물하나 개 주세요", "21 개 주세요", 0.0),
    ("it", "due valigie", "2 valigie", 0.5),
]


def run_of(folder: Path, language: str, meant: str, understood: str) -> Path:
    """A run of EVA with one call: the caller says a sentence, and the agent answers it."""

    def sound(kind: str, who: str, at_ms: int) -> dict[str, Any]:
        at = T0_MS + at_ms
        return {
            "timestamp": at,
            "event_type": f"audio_{kind}",
            "user": who,
            "audio_timestamp": at / 1_000,
        }

    caller = [
        sound("start", "simulated_user", 1_000),
        {"timestamp": T0_MS + 1_500, "type": "user_speech", "data": {"text": meant}},
        sound("end", "simulated_user", 3_000),
        sound("start", "assistant", 4_000),
        {"timestamp": T0_MS + 4_500, "type": "assistant_speech", "data": {"text": "Yes."}},
        sound("end", "assistant", 5_000),
        {
            "timestamp": T0_MS + 6_000,
            "type": "connection_state",
            "data": {"state": "session_ended", "details": {"reason": "goodbye"}},
        },
    ]
    record = folder / "records" / "1"
    record.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"language": language, "model": {"llm": "x"}}))
    heard = {"message_type": "user", "value": understood, "timestamp": str(T0_MS + 3_100)}
    (record / "audit_log.json").write_text(json.dumps({"transcript": [heard]}))
    (record / "user_simulator_events.jsonl").write_text(
        "".join(json.dumps(event) + "\n" for event in caller)
    )
    (record / "framework_logs.jsonl").write_text("")
    return folder


@pytest.mark.parametrize(("language", "meant", "understood", "expected"), UNDERSTOOD)
def test_what_is_understood_is_no_error(
    tmp_path: Path, language: str, meant: str, understood: str, expected: float
) -> None:
    run = run_of(tmp_path / "run", language, meant, understood)
    (recorded,) = read_recordings(run)
    of_eva = eva_metrics_of(recorded).values["stt_wer"]
    assert (of_eva["score"], of_eva["details"]["language"]) == (expected, language)
    (called,) = score(run)
    rate = called.call.stt_wer
    assert rate is not None
    assert rate.result == expected
    assert rate.normalizer == ("basic" if language == "it" else language)


def test_the_language_of_a_call_that_no_run_of_eva_has_made_is_that_of_its_start(
    tmp_path: Path,
) -> None:
    (recorded,) = read_recordings(
        run_of(tmp_path / "run", "de", "Zweiundzwanzig Koffer", "22 Koffer")
    )
    started = {"type": "call_started", "timestamp": T0_MS, "language": "de"}
    path = tmp_path / "calls.jsonl"
    call = {
        "id": "a",
        "audit": recorded.audit,
        "user_sim": recorded.elevenlabs,
        "control": [started],
    }
    path.write_text(json.dumps(call))
    (of_file,) = read_recordings(path)
    assert eva_metrics_of(of_file).values["stt_wer"]["score"] == 0.0
