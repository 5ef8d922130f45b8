"""Builds the container image without an engine and without a registry: Debian itself takes the
place of the base image.

debootstrap unpacks Debian once for a machine. buildah, with all that it stores in a folder of the
test, builds the Dockerfile on it.
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.patience import patient
from tests.support.required_tools import BUILDAH, CACHE, DEBOOTSTRAP, provide, require_tool

_RELEASE: Final = "trixie"
_PACKAGES: Final = "python3,python3-venv,ca-certificates"
_CERTIFICATES: Final = "/etc/ssl/certs/ca-certificates.crt"
_STEP_SECONDS: Final = 400


@dataclass(frozen=True)
class Buildah:
    """The program with images and containers of its own in a folder.

    Attributes:
        folder: Where they are.
        driver: How: layers over each other, or where the kernel or the file system cannot do that,
            whole copies.
    """

    folder: Path
    driver: str

    @classmethod
    def in_folder(cls, folder: Path) -> "Buildah":
        """Returns it with the quickest way of storing that works there. Missing programs are
        installed where that is allowed.
        """
        provide(BUILDAH, DEBOOTSTRAP)
        probe = cls(folder / "probe", "overlay").command("info")
        works = subprocess.run(probe, capture_output=True, timeout=patient(60)).returncode == 0
        return cls(folder, "overlay" if works else "vfs")

    def __call__(self, *arguments: str | Path) -> str:
        """Runs a command and returns its output."""
        done = subprocess.run(
            self.command(*arguments), capture_output=True, text=True, timeout=patient(_STEP_SECONDS)
        )
        assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-3_000:]
        return done.stdout.strip()

    def command(self, *arguments: str | Path) -> list[str]:
        own = [
            f"--root={self.folder / 'store'}",
            f"--runroot={self.folder / 'run'}",
            f"--storage-driver={self.driver}",
        ]
        return [require_tool("buildah", "apt-get install buildah"), *own, *map(str, arguments)]

    def image(self, dockerfile: Path, context: Path, bases: Sequence[str]) -> dict[str, Any]:
        """Builds a Dockerfile and returns its configuration. The image has the name `built`.

        Args:
            dockerfile: The file.
            context: The folder that it copies from.
            bases: Names of the images that it begins with. One with uv in its name becomes this
                environment's uv, another Debian.
        """
        for name in dict.fromkeys(bases):
            self._commit(
                name, Path(sys.executable).with_name("uv") if "/uv:" in name else _debian()
            )
        # Docker's own format, because the other one has no health check. Host network: the build
        # reaches the registry as we do.
        self(
            "bud",
            "--format=docker",
            "--isolation=chroot",
            "--pull-never",
            "--network=host",
            f"--file={dockerfile}",
            "--tag=built",
            context,
        )
        found: dict[str, Any] = json.loads(self("inspect", "--type=image", "built"))["Docker"][
            "config"
        ]
        return found

    def _commit(self, name: str, content: Path) -> None:
        container = self("from", "scratch")
        if content.suffix == ".tar":
            self("add", "--quiet", container, content, "/")
            # where a proxy signs the traffic, its certificate is here
            if given := os.environ.get("SSL_CERT_FILE"):
                self("copy", "--quiet", container, given, _CERTIFICATES)
                self("config", "--env", f"SSL_CERT_FILE={_CERTIFICATES}", container)
        else:
            self("copy", "--quiet", container, content, f"/{content.name}")
        self("commit", "--quiet", "--rm", container, name)


def _debian() -> Path:
    """The archive of a small Debian with Python, made once for a machine."""
    program = require_tool("debootstrap", "apt-get install debootstrap")
    if os.geteuid() != 0:
        pytest.skip("only root can unpack Debian into a folder")
    archive = CACHE / f"debian-{_RELEASE}.tar"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "debian.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            unpacked, unfinished = CACHE / f"debian-{_RELEASE}", archive.with_suffix(".unfinished")
            shutil.rmtree(unpacked, ignore_errors=True)
            for command in (
                [program, "--variant=minbase", f"--include={_PACKAGES}", _RELEASE, str(unpacked)],
                ["tar", "--directory", str(unpacked), "--create", "--file", str(unfinished), "."],
            ):
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=patient(_STEP_SECONDS)
                )
                assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-3_000:]
            unfinished.rename(archive)
            shutil.rmtree(unpacked)
    return archive
