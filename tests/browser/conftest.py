"""A real server of notebooks on this machine and a real browser in front of it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
QUIET = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"},
}


@pytest.fixture(scope="module")
def browser():
    """Chromium; a skip with the reason where it cannot be had.

    No longer than a module: playwright's event loop runs in this thread until the end.
    """
    sync_api = pytest.importorskip("playwright.sync_api")
    pytest.importorskip("jupyter_server")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"no Chromium on this machine (looked for {', '.join(BROWSERS)})")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=flags)
        yield chromium
        chromium.close()


@pytest.fixture
def screenshots():
    """The folder where pictures for people to look at are kept."""
    folder = ROOT / "build" / "screenshots"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def lab(tmp_path):
    """`with lab(theme) as (url, folder)`: a JupyterLab whose files are those of `folder`."""

    @contextmanager
    def start(theme: str):
        folder = tmp_path / "files"
        folder.mkdir()
        settings(tmp_path, theme)
        with running("jupyterlab", tmp_path, folder) as url:
            yield f"{url}/lab", folder

    return start


@pytest.fixture
def serve():
    """`with serve(module, tmp_path, folder) as url`: a server of the files of `folder`."""
    return running


@pytest.fixture
def user_settings():
    """Writes what a user has set, before the server starts."""
    return settings


@pytest.fixture
def no_anywidget():
    """Takes anywidget's part out of the browser, before the server starts."""
    return without_anywidget


@contextmanager
def running(module: str, tmp_path: Path, folder: Path):
    """A server of notebooks, `python -m module`, for the files of `folder`; its address."""
    port = free_port()
    log = tmp_path / "server.log"
    with log.open("w") as sink:
        server = subprocess.Popen(
            command(module, port, folder),
            env=environment(tmp_path),
            stdout=sink,
            stderr=subprocess.STDOUT,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(f"{url}/api", server, log)
        yield url
    finally:
        server.terminate()
        server.wait(20)


def settings(tmp_path: Path, theme: str) -> None:
    """What a user of JupyterLab and Notebook 7 has set."""
    themes = {"@jupyterlab/apputils-extension:themes": {"theme": theme}}
    for name, values in {**QUIET, **themes}.items():
        package, _, plugin = name.partition(":")
        file = tmp_path / "jupyterlab_settings_dir" / package / f"{plugin}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values))


def without_anywidget(tmp_path: Path) -> None:
    """Have JupyterLab and Notebook 7 leave out the extension that runs ES modules."""
    file = tmp_path / "jupyter_config_dir" / "labconfig" / "page_config.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"disabledExtensions": {"anywidget": True}}))


def command(module: str, port: int, folder: Path) -> list[str]:
    return [
        *(sys.executable, "-m", module, "--no-browser", "--allow-root"),
        *("--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}", "--ServerApp.port_retries=0"),
        *(f"--ServerApp.root_dir={folder}", "--IdentityProvider.token="),
        "--LabApp.check_for_updates_class=",
    ]


def environment(tmp_path: Path) -> dict[str, str]:
    own = ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTERLAB_SETTINGS_DIR", "IPYTHONDIR")
    return {**os.environ, **{name: str(tmp_path / name.lower()) for name in own}}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(url: str, server: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline and server.poll() is None:
        with suppress(OSError):
            urllib.request.urlopen(url, timeout=5).close()
            return
        time.sleep(0.2)
    pytest.fail(f"The server did not start:\n{log.read_text()[-3000:]}")
