"""From `callgauge serve` to a message: with the files that docs/serve.md has one save, and nothing
else.
"""

import json
import queue
from pathlib import Path
from typing import Final

from streamer.facts import ADDRESS_FILE
from tests.integration.processes import ran, started
from tests.support.fakes.http_answers import Answer, Request, answering
from tests.support.monitoring import alertmanager, prometheus
from tests.support.pages import blocks_of
from tests.support.patience import patient

MESSAGE_SECONDS: Final = 240
"""The watchdog lasts a minute before it fires, after at most two rounds of the rules, and a group
waits for half a minute.
"""


def test_the_files_of_the_page_bring_a_message(tmp_path: Path) -> None:
    saved = {block.saved_as: block.text for block in blocks_of("docs/serve.md") if block.saved_as}
    messages: queue.Queue[dict[str, str]] = queue.Queue()

    def answer(request: Request) -> Answer:
        (message,) = json.loads(request.body)["attachments"]
        messages.put(message)
        return Answer(200, b"ok")

    ran("deploy-files", str(tmp_path / "monitoring"))
    serve = ("serve", "--folder", str(tmp_path / "calls"), "--port", "0")
    with started(tmp_path / "serve.log", *serve) as process, answering(answer) as receiver:
        process.printed("callgauge serves")
        page = (tmp_path / "calls" / ADDRESS_FILE).read_text().strip().removeprefix("http://")
        config = tmp_path / "alertmanager.yml"
        config.write_text(
            saved["alertmanager.yml"].replace("https://hooks.slack.com/services/YOURS", receiver)
        )
        with alertmanager(config, tmp_path) as sender:
            config = tmp_path / "prometheus.yml"
            config.write_text(
                saved["prometheus.yml"]
                .replace("127.0.0.1:9093", sender.removeprefix("http://"))
                .replace("127.0.0.1:8070", page)
            )
            with prometheus(config, tmp_path):
                message = messages.get(timeout=patient(MESSAGE_SECONDS))
    assert (message["title"], message["text"].splitlines()[0]) == (
        "CallgaugeWatchdog",
        "All is well, alerts reach you.",
    )
    assert messages.empty(), "no alert about a role that serve has not"
