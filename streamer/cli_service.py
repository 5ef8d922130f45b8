"""The commands that run roles: `run` and `demo`."""

RUN_HELP = DEMO_HELP = "x"


def run() -> None:
    pass


def demo() -> None:
    pass
