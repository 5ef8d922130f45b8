"""Environment variables that nearly name a setting are found; those that Kubernetes sets are left alone."""

import pytest

from streamer.settings.all_settings import load_settings, near_misses, setting_names


def told_of(**environment: str) -> list[str]:
    return list(near_misses(environment, setting_names()))


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("CALLGAUGE_BOOTSTRP", "CALLGAUGE_BOOTSTRAP"),
        ("CALLGAUGE_GOALS_FOLDER", "CALLGAUGE_GOALS__FOLDER"),
        ("CALLGAUGE_GOAL__FOLDER", "CALLGAUGE_GOALS__FOLDER"),
        ("CALLGAUGE_GOAL_FOLDER", "CALLGAUGE_GOALS__FOLDER"),
        ("CALLGAUGE_LIMITS_IDLE_MS", "CALLGAUGE_LIMITS__IDLE_MS"),
        ("CALLGAUGE_LIMIT__IDLE_MS", "CALLGAUGE_LIMITS__IDLE_MS"),
        ("CALLGAUGE_IDLE_MS", "CALLGAUGE_LIMITS__IDLE_MS"),
        ("CALLGAUGE_FOLDER", "CALLGAUGE_GOALS__FOLDER or CALLGAUGE_TRANSCRIPTS__FOLDER"),
        ("CALLGAUGE_HTTP__PORT", "CALLGAUGE_HTTP_PORT"),
        ("CALLGAUGE_INGEST_PORT", "CALLGAUGE_INGEST__PORT"),
        ("CALLGAUGE_CONFG", "CALLGAUGE_CONFIG"),
    ],
)
def test_a_slip_is_noticed_with_the_right_name(variable: str, meant: str) -> None:
    (told,) = told_of(**{variable: "1"})
    assert told == f"{variable} is set but is no setting and changes nothing; did you mean {meant}?"


def test_the_variables_of_kubernetes_are_left_alone() -> None:
    """Kubernetes sets these in every container for services that are called `callgauge` or `callgauge-ingest`."""
    theirs: dict[str, str] = {}
    for service in ("CALLGAUGE", "CALLGAUGE_INGEST", "CALLGAUGE_HTTP_2"):
        theirs |= {
            f"{service}_SERVICE_HOST": "10.0.0.1", f"{service}_SERVICE_PORT": "8080",
            f"{service}_SERVICE_PORT_METRICS": "8080", f"{service}_PORT": "tcp://10.0.0.1:8080",
            f"{service}_PORT_8080_TCP": "tcp://10.0.0.1:8080", f"{service}_PORT_8080_TCP_PROTO": "tcp",
            f"{service}_PORT_8080_TCP_PORT": "8080", f"{service}_PORT_8080_TCP_ADDR": "10.0.0.1",
        }  # fmt: skip
    assert told_of(**theirs) == []
    load_settings(None, {}, theirs)


def test_right_names_and_names_of_others_are_left_alone() -> None:
    right = {f"CALLGAUGE_{'__'.join(names).upper()}": "1" for names in setting_names()}
    assert told_of(**right, CALLGAUGE_CONFIG="x", CALLGAUGE_JUDGE="{}", callgauge_http_port="1") == []
    assert told_of(CALLGAUGE_TEST_BOOTSTRAP="", CALLGAUGE_LIMITS__ZAP="1", PATH="", CALLGAUGE_TAG="local") == []
