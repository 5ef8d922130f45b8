"""`callgauge serve` can run on macOS and on Windows, as far as Linux can tell: nothing on its path
is of POSIX alone, and whatever it needs has wheels there.

Which names of Python are there on Windows stands in the type stubs that mypy brings.
"""

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import mypy
import pytest

from tests.support.patience import patient
from tests.tidy.source_tree import ROOT
from tests.unit.streamer.cli.test_imports import loaded

STUBS: Final = Path(mypy.__file__).parent / "typeshed/stdlib"
LOOP_METHODS: Final = {
    "add_signal_handler",
    "remove_signal_handler",
    "add_reader",
    "add_writer",
    "create_unix_server",
}
"""Of event loops: that of Windows raises NotImplementedError."""
GUARDS: Final = ("hasattr(", "sys.platform", "os.name", "NotImplementedError", "ImportError")
"""One of these stands in the `if`, `with` or `except` around what is not everywhere."""
SERVE: Final = """
import asyncio, tempfile
from pathlib import Path
from streamer.cli import serve
from streamer.roles import serving_command
from streamer.roles.serving import OneMachine
from streamer.settings.all_settings import Settings

async def make(folder):
    settings = Settings(judge={"api_key": "k"}, ingest={"elevenlabs_secret": "s"})
    machine, stop = OneMachine(settings, Path(folder), "127.0.0.1", 0), asyncio.Event()
    serving = asyncio.create_task(machine.run(stop))
    await machine.ready.wait()
    stop.set()
    await serving

with tempfile.TemporaryDirectory() as folder:
    asyncio.run(make(folder))
print()
"""
SYSTEMS: Final = (
    "aarch64-apple-darwin",
    "x86_64-pc-windows-msvc",
    "x86_64-unknown-linux-gnu",
    "aarch64-unknown-linux-gnu",
)


def _declared(body: Iterable[ast.stmt], system: str) -> Iterator[str]:
    """The names that a stub declares for a system, as `sys.platform` has it, without those that it
    imports.
    """
    for node in body:
        match node:
            case ast.If():
                known = {"sys": SimpleNamespace(platform=system, version_info=sys.version_info)}
                yield from _declared(
                    # of a stub
                    node.body if eval(ast.unparse(node.test), known) else node.orelse,  # noqa: S307
                    system,
                )
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                yield name


@cache
def _missing_on_windows(module: str) -> frozenset[str] | None:
    """Names of a module of Python that Windows does not have; None where it lacks the
    whole module.
    """
    path = STUBS.joinpath(*module.split("."))
    stub = path / "__init__.pyi" if path.is_dir() else path.with_suffix(".pyi")
    if not stub.exists():  # no module of Python, or without a stub
        return frozenset()
    body = ast.parse(stub.read_text(encoding="utf-8")).body
    here, there = (set(_declared(body, system)) for system in ("linux", "win32"))
    return None if here and not there else frozenset(here - there)


def _of_posix(tree: ast.Module) -> Iterator[str]:
    """What a module uses that is not everywhere, without asking first."""
    names: dict[str, str] = {}
    guarded: set[int] = set()
    for node in ast.walk(tree):
        asks = {
            ast.If: lambda each: [each.test],
            ast.With: lambda each: [item.context_expr for item in each.items],
            ast.Try: lambda each: [handler.type for handler in each.handlers if handler.type],
        }.get(type(node), lambda _: [])(node)
        if any(guard in ast.unparse(each) for each in asks for guard in GUARDS):
            guarded |= {id(inside) for inside in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in guarded:
            continue
        match node:
            case ast.Import():
                names |= {alias.asname or alias.name: alias.name for alias in node.names}
                yield from (
                    alias.name for alias in node.names if _missing_on_windows(alias.name) is None
                )
            case ast.ImportFrom(module=str(module)):
                missing = _missing_on_windows(module)
                yield from (
                    f"{module}.{alias.name}"
                    for alias in node.names
                    if missing is None or alias.name in missing
                )
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if attribute in (
                _missing_on_windows(names.get(name, "")) or ()
            ):
                yield f"{name}.{attribute}"
            case ast.Attribute(attr=attribute) if attribute in LOOP_METHODS:
                yield attribute


def test_serve_uses_nothing_of_posix_alone() -> None:
    modules = {
        name
        for name in loaded(SERVE)
        if name.partition(".")[0] in {"schemas", "consumers", "streamer"}
    }
    assert {
        "streamer.roles.serving",
        "streamer.signals",
        "consumers.log.file",
        "consumers.judge.on_file",
    } <= modules
    assert {name for name in modules if name.endswith(".kafka.connection")} == set()
    paths = (ROOT.joinpath(*name.split(".")) for name in modules)
    files = [path / "__init__.py" if path.is_dir() else path.with_suffix(".py") for path in paths]
    found = {
        str(file): uses
        for file in files
        if file.exists()
        if (uses := [*_of_posix(ast.parse(file.read_text()))])
    }
    assert found == {}


@pytest.mark.parametrize(
    ("line", "uses"),
    [
        ("import fcntl", ["fcntl"]),
        ("import resource as r", ["resource"]),
        ("from pwd import getpwuid", ["pwd.getpwuid"]),
        (
            "import os; os.fork(); os.getuid(); os.fsync(1); os.O_NOFOLLOW",
            ["os.fork", "os.getuid", "os.O_NOFOLLOW"],
        ),
        ("import signal; signal.SIGHUP; signal.SIGTERM", ["signal.SIGHUP"]),
        ("import socket; socket.AF_UNIX; socket.AF_INET6", ["socket.AF_UNIX"]),
        ("loop.add_signal_handler(2, stop)", ["add_signal_handler"]),
        ("import os\nif hasattr(os, 'getuid'):\n    os.getuid()", []),
        ("with suppress(NotImplementedError):\n    loop.add_signal_handler(2, stop)", []),
        ("try:\n    import fcntl\nexcept ImportError:\n    fcntl = None", []),
    ],
)
def test_what_is_of_posix_alone_is_seen(line: str, uses: list[str]) -> None:
    assert sorted(_of_posix(ast.parse(line))) == sorted(uses)


@pytest.mark.long
@pytest.mark.parametrize("python", ["3.11", "3.13"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_every_locked_package_has_a_wheel(system: str, python: str, tmp_path: Path) -> None:
    uv = Path(sys.executable).with_name("uv")
    options = [
        "--no-deps",
        "--only-binary",
        ":all:",
        "--python-platform",
        system,
        "--python-version",
        python,
    ]
    places = ["--target", str(tmp_path), "--requirement", str(ROOT / "requirements.lock")]
    done = subprocess.run(
        [uv, "pip", "install", "--dry-run", *options, *places],
        capture_output=True,
        text=True,
        timeout=patient(120),
    )
    if done.returncode and ("connect" in done.stderr or "dns" in done.stderr):
        pytest.skip(
            "no package index answers, so nobody knows which wheels there are: "
            f"{done.stderr.strip()[:200]}"
        )
    assert done.returncode == 0, done.stderr
