"""The checker checked: what is broken on purpose must be found out, in a scripted situation and not
by luck.
"""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.chaos.canaries.script import PARTITION, Script
from tests.chaos.canaries.scripts import CANARIES
from tests.chaos.cluster import cluster as clusters
from tests.chaos.cluster.cluster import Cluster
from tests.chaos.evaluators.altered import WITH, WITHOUT
from tests.chaos.evaluators.fleet import ALTERED
from tests.chaos.stage import Say, Stage
from tests.chaos.verdict.checker import Findings

EXAMPLES: Final = 4
MOST_CHARS: Final = 300


def not_as_it_must_be(kinds: Sequence[str], say: Say, *, has_controls: bool) -> list[str]:
    """Plays canaries on a cluster of their own, and says of each which findings there are.

    Args:
        kinds: The broken parts, each one of `CANARIES`.
        say: Takes each line of the report.
        has_controls: Whether to play each script with whole processes too, of which there must be
            no finding.

    Returns:
        A sentence about each that was not found out, and about each whole one that was.
    """
    complaints = []
    with (
        tempfile.TemporaryDirectory(
            prefix="callgauge-chaos-", ignore_cleanup_errors=True
        ) as folder,
        clusters.running(Path(folder), brokers=1) as cluster,
    ):
        for kind in kinds:
            if played(kind, WITHOUT, cluster, Path(folder), say).is_clean:
                complaints.append(f"the checker does not notice who is without {kind}")
            if has_controls and not played(kind, WITH, cluster, Path(folder), say).is_clean:
                complaints.append(
                    f"the checker has findings of whole processes in the script of {kind}"
                )
    return complaints


def played(kind: str, way: str, cluster: Cluster, folder: Path, say: Say) -> Findings:
    """The findings of one script."""
    begin = time.monotonic()
    canary = CANARIES[kind]
    own = folder / f"{way}-{kind}"
    own.mkdir()
    stage = Stage(
        cluster,
        own,
        say,
        partitions=PARTITION + 1,
        command=(*ALTERED, way, kind),
        prefix=f"{way}-{kind}.",
        limits=canary.settings,
    )
    with stage:
        canary.play(Script(stage))
        findings = stage.judged()
        incidents = stage.told() if stage.fleet.incidents or stage.sequencers.incidents else ()
        for line in (*findings.examples[:EXAMPLES], *incidents):
            say(line[:MOST_CHARS])
    zeros = f"missing={findings.missing} duplicate={findings.duplicate} wrong={findings.wrong}"
    result = "clean" if findings.is_clean else "found out"
    say(f"canary: {way} {kind}: {zeros}: {result}, {time.monotonic() - begin:.0f} s")
    return findings
