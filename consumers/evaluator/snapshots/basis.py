"""The basis of this process's snapshots, and a log line if it writes none."""

import hashlib
import json
from typing import Final

import structlog

from consumers.evaluator.settings import EvaluatorSettings
from consumers.evaluator.snapshots.code_digest import code_digest
from consumers.evaluator.snapshots.manifest import Basis

log = structlog.get_logger()

_HOW_TO: Final = (
    "Make a key with `openssl rand -hex 32`, give it to every evaluator of the group (snapshots.key_file), and make the topic "
    "`snapshots` with `callgauge topics create`. See deploy/security.md."
)


def basis_of(settings: EvaluatorSettings) -> Basis:
    """Returns group, code, and a digest of every setting that decides the state or its results."""
    deciding = {
        "limits": settings.limits.model_dump(mode="json"),
        "goals": settings.goals.model_dump(mode="json"),
        "redaction": settings.redaction.model_dump(mode="json"),
        "writes_transcripts": settings.writes_transcripts,
    }
    return Basis(
        group=settings.group_id,
        code_version=settings.code_version,
        code_digest=code_digest(),
        settings_digest=hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest(),
    )


def say_if_off(settings: EvaluatorSettings, *, is_embedded: bool) -> None:
    """Logs one line at the start if states could be handed over but are not: the cost, and the remedy."""
    if settings.snapshot_key is None and settings.uses_transactions and not is_embedded:
        log.info(
            "snapshots_are_off",
            seen="There is no key for them (snapshots.key_file).",
            what_happens_now="When an evaluator stops, and when one joins, the open calls that move are replayed from their first "
            "event: some 5 ms of processor time a call, in which nothing of them is published.",
            what_to_do=_HOW_TO,
        )
