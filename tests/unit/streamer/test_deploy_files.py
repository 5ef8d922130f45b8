"""The files of a deployment: all of them are written, changed ones stay, and the wheel gets the
same ones.
"""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from consumers.console import pages
from consumers.runtime.process import OperatorError
from streamer import deploy_files
from streamer.deploy_files import PLACES, runbooks, write_deploy_files

ROOT = Path(__file__).parents[3]


def files_in(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_each_file_is_that_of_the_repository_and_a_second_time_nothing_is_written(
    tmp_path: Path,
) -> None:
    count = write_deploy_files(tmp_path / "a" / "b", replaces=False)
    written = files_in(tmp_path / "a" / "b")
    assert count == len(written)
    assert {name: (ROOT / "deploy" / name).read_bytes() for name in written} == written
    assert {
        "prometheus/rules/callgauge.rules.yml",
        "grafana/dashboards/quality.json",
    } <= written.keys()
    assert write_deploy_files(tmp_path / "a" / "b", replaces=False) == 0


def test_a_changed_file_stays_with_all_others_unless_it_may_be_replaced(tmp_path: Path) -> None:
    rules = tmp_path / "prometheus" / "rules" / "callgauge.rules.yml"
    rules.parent.mkdir(parents=True)
    rules.write_text("mine")
    with pytest.raises(
        OperatorError, match=r"1 files .* first prometheus/rules/callgauge\.rules\.yml"
    ):
        write_deploy_files(tmp_path, replaces=False)
    assert files_in(tmp_path) == {"prometheus/rules/callgauge.rules.yml": b"mine"}
    assert write_deploy_files(tmp_path, replaces=True) == len(files_in(tmp_path)) > 1
    assert b"mine" not in rules.read_bytes()[:10]


def test_a_place_that_is_no_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OperatorError, match="cannot be written"):
        write_deploy_files(tmp_path / "file", replaces=False)


def test_the_wheel_gets_the_same_places() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    forced = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert forced == {f"deploy/{place}": f"streamer/deployed/{place}" for place in PLACES}


def test_where_an_installation_has_its_own_these_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in PLACES:
        path = tmp_path / "deployed" / place / "file"
        path.parent.mkdir(parents=True)
        path.write_text(place)
    monkeypatch.setattr(deploy_files, "_IN_THE_WHEEL", tmp_path / "deployed")
    write_deploy_files(tmp_path / "out", replaces=False)
    assert files_in(tmp_path / "out") == {f"{place}/file": place.encode() for place in PLACES}


def test_the_steps_of_an_alert_are_those_of_its_text_and_the_console_has_them() -> None:
    rules = ROOT / "deploy" / "prometheus" / "rules" / "callgauge.rules.yml"
    texts = {
        rule["alert"]: rule["annotations"]["runbook"]
        for group in yaml.safe_load(rules.read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }
    known = runbooks({"voice": "#voice"})
    steps = {name: each.steps for name, each in known.items()}
    assert {alert: " ".join(each) for alert, each in steps.items() if alert in texts} == {
        alert: " ".join(re.sub(r"(?m)^\d+\. ", "", text).split()) for alert, text in texts.items()
    }
    named = {alert for _, alert in pages._WRONG.values() if alert}
    assert named <= steps.keys()
    assert {(known[alert].team, known[alert].contact) for alert in named} == {("voice", "#voice")}
    assert all(each.text.startswith(f"# {name}\n") for name, each in known.items())
