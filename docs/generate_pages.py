"""Writes the generated pages, and the generated parts of other pages. Run it after a change of
their data; a test compares.

Pages about commands, settings and metrics are generated whole. Pages with text and tables keep their text,
and the lines between `<!-- begin NAME -->` and `<!-- end NAME -->` are generated. All of it comes
from the data that callgauge itself runs by.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Final

# so that `python docs/generate_pages.py` finds its neighbours
sys.path.insert(0, str(Path(__file__).parents[1]))

from docs.command_pages import command_list, command_sections, common_options
from docs.event_tables import event_lines
from docs.figure_tables import call_lines as sizes_of_calls
from docs.figure_tables import (
    evaluator_lines,
    kept_lines,
    performance_lines,
    sequencer_lines,
    serve_lines,
    tick_lines,
)
from docs.metric_uses import uses
from docs.table_columns import (
    both_lines,
    call_lines,
    goals_lines,
    own_lines,
    past_lines,
    trial_lines,
    trouble_lines,
    turn_lines,
    words_lines,
)
from docs.topic_pages import asyncapi, topic_lines
from schemas.metrics.catalogue import METRICS
from schemas.metrics.definition import OVERFLOW_VALUE
from streamer.settings.all_settings import Settings, given_values, settings_of
from streamer.settings.listing import ListedSetting, listed_settings, settings_file, shown_value

_ROOT: Final = Path(__file__).parents[1]


_PARTS: Final[Mapping[str, Mapping[str, Callable[[], Iterator[str]]]]] = {
    "deploy/sizing.md": {
        "serve": serve_lines,
        "calls": sizes_of_calls,
        "sequencer": sequencer_lines,
        "ticks": tick_lines,
        "evaluators": evaluator_lines,
        "kept": kept_lines,
    },
    "docs/events.md": {"events": event_lines},
    "docs/performance.md": {"figures": performance_lines},
    "docs/topics.md": {"topics": topic_lines},
    "docs/tables.md": {
        "both": both_lines,
        "calls": call_lines,
        "turns": turn_lines,
        "goals": goals_lines,
        "words": words_lines,
        "own": own_lines,
        "running calls": trouble_lines,
        "past calls": past_lines,
        "trials": trial_lines,
    },
}
"""Generated parts by the page and their names."""

_SETTINGS_HEAD: Final = """\
# Settings

`callgauge settings` lists all of them with the values that they have now, and where each value comes from. Four places
can set one; the later wins:

1. the default,
2. a TOML file: `--config callgauge.toml`, or `CALLGAUGE_CONFIG=callgauge.toml`;
   [callgauge.example.toml](../deploy/callgauge.example.toml) has every setting,
3. the environment: `CALLGAUGE_` and the name. A block is separated by two underscores: `goals.folder` is
   `CALLGAUGE_GOALS__FOLDER`,
4. the command line, for the few settings that are options of a command.

All mistakes are reported at once, before anything is started. A variable that nearly has the name of a setting is
reported as a warning. Secrets belong into files: the value `file:/run/secrets/token` of a secret, or of
`goals.template_subgoal`, is what stands in that file, read once at the start.
"""
_COMMANDS_HEAD: Final = """\
# Commands

`callgauge COMMAND --help` says everything about a command, also what is left out here. `callgauge --install-completion` completes
commands and options in your shell, and says what it changed. [Settings](settings.md) come from options, the environment and a file.

`serve`, `demo`, `score`, `report PATH`, `trials PATH`, `transcript`, `context PATH`, `schema`, `settings`, `history`, `goals check`,
`events check` and `deploy-files` need no broker. Commands about live calls, and `history forget`, need none
with the `--folder` of `callgauge serve`: [serve.md](serve.md#commands-on-a-folder) has them.
[deploy/security.md](../deploy/security.md#rights-on-the-cluster) has the rights that a command needs on Kafka.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | the work failed, in part or as a whole, or a check found a fault |
| 2 | a setting, an option or a file is wrong: nothing was started |
| 130, 141 | ended by Ctrl-C; ended because nothing reads the output |
"""
_COMMON_OPTIONS_HEAD: Final = """
## Options of several commands

`--csv`, `--parquet` and `--json` are for programs: [tables.md](tables.md) has the columns.
"""
_METRICS_HEAD: Final = """\
# Metrics

Each process of callgauge serves the metrics of its roles on `/metrics`, at `http_host` and `http_port`
([settings](settings.md)). A histogram has the series `_bucket`, `_count` and `_sum`. Conversation ids are never labels.
Values of labels that come from events are bounded: later ones become `other`. `call` stands for the labels `agent`, `tenant`
and `environment`.

`used by` has the dashboards in [deploy/grafana](../deploy/grafana) and the alerts in [deploy/prometheus](../deploy/prometheus)
that read the metric, also through recordings, and recordings that no alert reads.

"""


_OF_CALL: Final = "agent, tenant, environment"
"""The labels that most metrics of calls have."""


def pages() -> Mapping[Path, str]:
    """The text of each generated file by its path."""
    given = given_values(None, {}, {})
    listed = listed_settings(settings_of(given), given)
    return {
        _ROOT / "docs" / "commands.md": _commands(),
        _ROOT / "docs" / "settings.md": _SETTINGS_HEAD + "\n".join(_settings(listed)) + "\n",
        _ROOT / "docs" / "metrics.md": _METRICS_HEAD + metric_tables(uses()),
        _ROOT / "docs" / "asyncapi.yaml": asyncapi(),
        _ROOT / "deploy" / "callgauge.example.toml": settings_file(listed),
        **{_ROOT / page: _with_parts(_ROOT / page, parts) for page, parts in _PARTS.items()},
    }


def metric_tables(uses: Mapping[str, str]) -> str:
    """Tables as GitHub markdown: one row per metric, by role, then one per label. Ends with a line
    break.

    Args:
        uses: By metric, what uses it, of a dashboard `DASHBOARD: PANEL`; a metric that nothing uses
            may be left out.
    """
    lines: list[str] = []
    for role, metrics in groupby(METRICS, key=lambda metric: metric.role):
        head = "| metric | type | labels | meaning | used by |"
        lines += [f"## {role.capitalize()}", "", head, "|---|---|---|---|---|"]
        for metric in metrics:
            names = ", ".join(metric.labels)
            users = uses.get(metric.name, "").split("; ")
            labels = names.replace(_OF_CALL, "call", 1) if names.startswith(_OF_CALL) else names
            row = (
                f"`{metric.name}`",
                f"{metric.type}, {metric.unit}",
                labels,
                metric.help,
                ", ".join(dict.fromkeys(user.partition(": ")[0] for user in users)),
            )
            lines.append(f"| {' | '.join(row)} |")
        lines.append("")
    lines += ["## Labels", "", "| label | meaning | values |", "|---|---|---|"]
    labels_in_order = dict.fromkeys(label for metric in METRICS for label in metric.label_set)
    for label in sorted(labels_in_order, key=lambda label: label.name):
        if label.values:
            bound = ", ".join(f"`{value}`" for value in label.values)
        elif label.cap:
            bound = f"the first {label.cap}, then `{OVERFLOW_VALUE}`"
        else:
            bound = "given by the deployment"
        lines.append(f"| `{label.name}` | {label.meaning} | {bound} |")
    return "\n".join(lines) + "\n"


def _with_parts(page: Path, parts: Mapping[str, Callable[[], Iterator[str]]]) -> str:
    """The text of a page with today's generated parts."""
    text = page.read_text(encoding="utf-8")
    for name, lines in parts.items():
        begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->\n"
        head, _, rest = text.partition(begin)
        _, _, tail = rest.partition(end)
        text = f"{head}{begin}{chr(10).join(lines())}\n{end}{tail}"
    return text


def _commands() -> str:
    parts = (
        _COMMANDS_HEAD,
        _lines(command_list()),
        _COMMON_OPTIONS_HEAD,
        _lines(common_options()),
        _lines(command_sections()),
    )
    return "".join(parts)


def _lines(lines: Iterator[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _settings(listed: tuple[ListedSetting, ...]) -> Iterator[str]:
    block = None
    for each in listed:
        if each.block != block:
            block = each.block
            about = Settings.model_fields[block].description if block else None
            yield from ("", f"## {block or 'General'}", "")
            if about:
                yield from (f"{about[:1].upper()}{about[1:]}.", "")
            yield from ("| setting | default | meaning |", "|---|---|---|")
        default = "" if each.default in (None, "", [], {}) else f"`{shown_value(each.default)}`"
        meaning = each.description.replace("|", "\\|")
        if not default and each.example is not None and not each.is_secret:
            meaning += f"; for example `{each.example}`"
        yield f"| `{each.full_name}` | {default} | {meaning} |"


def write_pages() -> None:
    """Writes each generated file."""
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_pages()
