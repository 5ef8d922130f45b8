"""agent-inspect's scorers on a trace whose votes are known: progress over turns, AUC, PPT and success.

It runs in an environment of its own, so it imports nothing of ours. The trace comes as JSON on
standard input. It prints the scores and the processor time of the least disturbed round, as JSON.
"""

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

from agent_inspect.metrics.scorer import AUC, PPT, ProgressScoresThroughTurns, SuccessScoreFinalTurn
from agent_inspect.models.llm_response import LLMResponse
from agent_inspect.models.metrics.agent_data_sample import EvaluationSample, SubGoal
from agent_inspect.models.metrics.agent_trace import AgentDialogueTrace, AgentResponse, TurnTrace

OK = 200


class Judge:
    """Gives each question the next answer, as often as it is asked."""

    def __init__(self, answers: Iterator[str]) -> None:
        self._answers = answers

    async def make_llm_requests(self, prompts: list[str]) -> list[LLMResponse]:
        """Answers one wave, which has one question."""
        answer = next(self._answers)
        return [LLMResponse(status=OK, completion=answer) for _ in prompts]


def scored(given: dict[str, Any]) -> dict[str, Any]:
    """The results of all four scorers; each judges anew."""
    trace = AgentDialogueTrace(
        turns=[
            TurnTrace(
                id=str(number), agent_input=user, agent_response=AgentResponse(response=assistant)
            )
            for number, (user, assistant) in enumerate(given["turns"], 1)
        ]
    )
    sample = EvaluationSample(
        sub_goals=[SubGoal(details=details) for details in given["subgoals"]],
        user_instruction=given["user_instruction"],
    )

    def result(scorer: Any) -> Any:
        return scorer(Judge(iter(given["answers"])), given["config"]).evaluate(trace, sample)

    return {
        "progress": [each.score for each in result(ProgressScoresThroughTurns)],
        "auc": result(AUC).score,
        "ppt": result(PPT).score,
        "success": result(SuccessScoreFinalTurn).score,
    }


def main() -> None:
    """Scores the trace as often as it says."""
    given = json.load(sys.stdin)
    times, scores = [], {}
    for _ in range(given["rounds"]):
        begin = time.process_time()
        scores = scored(given)
        times.append(time.process_time() - begin)
    print(json.dumps({"scores": scores, "processor_seconds": min(times)}))


if __name__ == "__main__":
    main()
