"""Recorded success and progress of goal sets are those of their calls, as promtool computes them."""

from pathlib import Path
from typing import Any

import yaml

from tests.deploy.test_prometheus_rules import RULES_FILE
from tests.support.promtool import promtool

AT = "2h"


def series(name: str, labels: str, per_minute: float) -> dict[str, str]:
    """A counter that grows evenly for two hours."""
    return {"series": f"{name}{{{labels}}}", "values": f"0+{per_minute:g}x120"}


def calls(goal_set: str, outcome: str, per_minute: float, environment: str = "production") -> dict[str, str]:
    labels = f'goal_set="{goal_set}",environment="{environment}",outcome="{outcome}"'
    return series("callgauge_goal_set_calls_total", labels, per_minute)


def progress(goal_set: str, part: str, per_minute: float) -> dict[str, str]:
    labels = f'goal_set="{goal_set}",environment="production"'
    return series(f"callgauge_goal_set_progress_ratio_{part}", labels, per_minute)


SERIES = [
    calls("refund", "success", 3),
    calls("refund", "failure", 1),
    calls("refund", "unscored", 6),
    progress("refund", "sum", 3.5),
    progress("refund", "count", 4),
    calls("booking", "success", 0),
    calls("booking", "failure", 2),
    calls("idle", "success", 0),
    calls("idle", "failure", 0),
    calls("refund", "success", 9, environment="staging"),
]
EXPECTED: dict[str, dict[str, float]] = {
    # Three of four known calls succeed; unknown ones are in neither ratio.
    "goal_set:callgauge_goal_success:ratio_rate1h": {"refund": 0.75, "booking": 0},
    "goal_set:callgauge_goal_progress:ratio_rate1h": {"refund": 0.875},
    "goal_set:callgauge_goal_calls:count1h": {"refund": 240, "booking": 120, "idle": 0},
    "goal_set:callgauge_goal_success:ratio_rate1d": {"refund": 0.75, "booking": 0},
    "goal_set:callgauge_goal_progress:ratio_rate1d": {"refund": 0.875},
}


def test_success_and_progress_of_goal_sets_are_recorded(tmp_path: Path) -> None:
    asked = [
        {
            "expr": f"round({name}, 0.001)",
            "eval_time": AT,
            "exp_samples": [
                {"labels": f'{{goal_set="{goal_set}", environment="production"}}', "value": value}
                for goal_set, value in expected.items()
            ],
        }
        for name, expected in EXPECTED.items()
    ]
    assert checked(asked, tmp_path) == ""


def test_a_wrong_ratio_is_noticed(tmp_path: Path) -> None:
    labels = '{goal_set="refund", environment="production"}'
    asked = {"expr": 'goal_set:callgauge_goal_success:ratio_rate1h{goal_set="refund"}', "eval_time": AT}
    assert checked([{**asked, "exp_samples": [{"labels": labels, "value": 0.3}]}], tmp_path) != ""


def checked(asked: list[dict[str, Any]], folder: Path) -> str:
    """The complaints of promtool about values that are not as expected."""
    test = {"interval": "1m", "input_series": SERIES, "promql_expr_test": asked}
    document = {"rule_files": [str(RULES_FILE)], "evaluation_interval": "1m", "tests": [test]}
    file = folder / "goals.yaml"
    file.write_text(yaml.safe_dump(document))
    result = promtool("test", "rules", file)
    return "" if result.returncode == 0 else result.stdout + result.stderr
