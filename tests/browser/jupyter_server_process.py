"""Runs a Jupyter server as a process, and says where the tests of this folder save their screenshots."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import nbformat
import pytest
from nbformat.sign import NotebookNotary

__all__ = ["GENTLY", "ROOT", "SCREENSHOTS", "VIEWPORT", "JupyterServer"]

ROOT = Path(__file__).parents[2]
#: The folder of the screenshots is not in git. Each run writes them again.
SCREENSHOTS = ROOT / "build" / "screenshots"
#: Code of a cell: the fits that follow on the cluster `c` leave the cores to the page until `c.run(meetings)`, or until
#: there is a file `enough` in the folder of the notebooks.
GENTLY = (
    f"import os, sys\nsys.path.append({str(ROOT / 'tests' / 'support')!r})\n"
    "from strikes import meetings, strike\nc.run(strike, pause=0.15, enough=os.path.abspath('enough'))\n"
)
#: The window is high, because JupyterLab keeps only visible cells in the document.
VIEWPORT = {"width": 1300, "height": 3600}


class JupyterServer:
    """A server with its own folder, token and settings. Only its pages start kernels."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "notebooks"
        self.folder.mkdir()
        self.token = secrets.token_hex(16)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.address = f"http://127.0.0.1:{port}"
        jupyter, lab = ("CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR"), ("SETTINGS_DIR", "WORKSPACES_DIR")
        environment = os.environ | {f"JUPYTER_{name}": str(folder / name.lower()) for name in jupyter}
        environment |= {f"JUPYTERLAB_{name}": str(folder / name.lower()) for name in lab}
        # An image of binder/ has these settings in the same place.
        environment["JUPYTER_CONFIG_PATH"] = str(ROOT / "binder")
        options = [f"--ServerApp.port={port}", "--ServerApp.port_retries=0", "--allow-root", "--no-browser"]
        options += [f"--IdentityProvider.token={self.token}", f"--ServerApp.root_dir={self.folder}"]
        # JupyterLab's question about news would cover a part of the page; and it shows no names that come after 1 s.
        for name, settings in {
            "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
            "completer-extension/manager": {"providerTimeout": 60_000},
        }.items():
            file = folder / f"settings_dir/@jupyterlab/{name}.jupyterlab-settings"
            file.parent.mkdir(parents=True)
            file.write_text(json.dumps(settings))
        # For each page that is opened, JupyterLab would start node, and ask whether it has to be built anew.
        page_config = folder / "config_dir" / "labconfig" / "page_config.json"
        page_config.parent.mkdir(parents=True)
        page_config.write_text(json.dumps({"buildAvailable": False, "buildCheck": False}))
        self._log = folder / "server.log"
        self._environment = environment
        with self._log.open("wb") as log:
            command = [sys.executable, "-m", "jupyterlab", *options]
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        deadline = time.monotonic() + 120
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"the Jupyter server did not start:\n{self._log.read_text()}")
            time.sleep(0.1)

    def ask(self, path: str, method: str = "GET", body: object = None) -> bytes:
        """Send one request to the server's API, and return the answer."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"token {self.token}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.address}/{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.read()

    def set_theme(self, theme: str) -> None:
        """Set the theme, as a user does in the menu Settings, Theme."""
        settings = json.dumps({"theme": f"JupyterLab {theme.title()}", "adaptive-theme": False})
        self.ask("lab/api/settings/@jupyterlab/apputils-extension:themes", "PUT", {"raw": settings})

    def url(self, notebook: Path, application: str = "lab/tree") -> str:
        """Return the address that opens a notebook of the server's folder, without notebooks that were open before."""
        return f"{self.address}/{application}/{notebook.relative_to(self.folder)}?token={self.token}&reset"

    def trust(self, notebook: Path) -> None:
        """Trust a notebook as if this server had written it. Otherwise its outputs have no styles and pictures."""
        notary = NotebookNotary(data_dir=self._environment["JUPYTER_DATA_DIR"])
        notary.sign(nbformat.read(notebook, as_version=4))
        notary.store.close()

    def end_kernels(self) -> None:
        """End all kernels as the menu does, so that each kernel can stop its cluster."""
        for kernel in json.loads(self.ask("api/kernels")):
            self.ask(f"api/kernels/{kernel['id']}", "DELETE")

    @property
    def running(self) -> bool:
        """Whether the server's process runs."""
        return self._process.poll() is None

    def stop(self) -> None:
        if self.running:
            self.end_kernels()
        self._process.terminate()
        self._process.wait(30)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(self.ask("api/status"))
        return False
