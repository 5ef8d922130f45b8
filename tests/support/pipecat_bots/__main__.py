"""`python -m tests.support.pipecat_bots` plays the calls at once, in real time, and prints
pipecat's own measurements as JSON.

It is a process of its own because pipecat warns a lot, and because a bot is one.
"""

import argparse
import asyncio
import json
import sys
from pathlib import Path

from loguru import logger
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from pipecat_callgauge import CallgaugeObserver

from tests.support.pipecat_bots.bot import Bot
from tests.support.pipecat_bots.calls import CALLS

AGENT = "museum-desk"


async def _play(names: list[str], folder: Path | None, traces: str | None) -> dict[str, object]:
    bots = []
    provider = (
        None if traces is None else TracerProvider(resource=Resource({"service.name": AGENT}))
    )
    if provider is not None:
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(traces)))
        trace.set_tracer_provider(provider)
    for name in names:
        file = None if folder is None else (folder / f"{name}.jsonl").open("w")
        sink = (
            None if file is None else (lambda event, file=file: print(json.dumps(event), file=file))
        )
        observer = CallgaugeObserver(conversation_id=name, agent=AGENT, sink=sink)
        bots.append(Bot(name, CALLS[name], observer, is_traced=provider is not None))
    await asyncio.gather(*[bot.run() for bot in bots])
    if provider is not None:
        provider.shutdown()  # it sends what is left
    return {
        bot.name: {
            "latencies_ms": [1000 * each for each in bot.latencies_s],
            "said": bot.said,
            "sounds": bot.line.sounds,
        }
        for bot in bots
    }


def main() -> None:
    """Plays the named calls, or all. With a folder the events go there, otherwise to Kafka as the
    environment says.
    """
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.pipecat_bots", description=__doc__
    )
    parser.add_argument("calls", nargs="*", choices=[[], *CALLS], help="names of calls")
    parser.add_argument(
        "--folder", type=Path, help="write the events of each call into a file here"
    )
    parser.add_argument(
        "--traces", help="send the spans of the calls there, with headers as the environment says"
    )
    arguments = parser.parse_args()
    logger.remove()
    logger.add(sys.stderr, level="ERROR")
    print(
        json.dumps(
            asyncio.run(_play(arguments.calls or list(CALLS), arguments.folder, arguments.traces))
        )
    )


if __name__ == "__main__":
    main()
