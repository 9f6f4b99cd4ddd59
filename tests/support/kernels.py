"""A real kernel of Jupyter, asked what a front end asks it: to run cells, to complete and to explain names."""

from __future__ import annotations

import os
import tempfile
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

__all__ = ["Kernel"]


class Kernel:
    """A kernel, as a context manager."""

    def __init__(self) -> None:
        self._manager = KernelManager()
        self._client: BlockingKernelClient
        self._folder = tempfile.TemporaryDirectory(prefix="xpulab-kernel-")

    def __enter__(self) -> Kernel:
        self._manager.start_kernel(env={**os.environ, "IPYTHONDIR": self._folder.name})
        self._client = self._manager.blocking_client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=60)
        return self

    def __exit__(self, *_: object) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel()
        self._manager.cleanup_resources()
        self._folder.cleanup()

    def run(self, code: str, seconds: float = 120, **request: Any) -> str:
        """Run a cell, and return its output as text: what is printed, the value, and the error.

        `request` has what a front end can ask for in addition: ``silent``, ``store_history``.
        """
        said: list[str] = []

        def note(message: dict[str, Any]) -> None:
            content = message["content"]
            kind = message["header"]["msg_type"]
            if kind == "stream":
                said.append(content["text"])
            elif kind in ("execute_result", "display_data"):
                said.append(content["data"].get("text/plain", "") + "\n")
            elif kind == "error":
                said.append("\n".join(content["traceback"]) + "\n")

        self._client.execute_interactive(code, timeout=seconds, output_hook=note, **request)
        return "".join(said)

    def completions(self, code: str) -> dict[str, str]:
        """Return what Tab offers at the end of a cell, with the kind of each name."""
        reply = self._client.complete(code, reply=True, timeout=60)["content"]
        kinds = {each["text"]: each["type"] for each in reply["metadata"].get("_jupyter_types_experimental", ())}
        return {text: kinds.get(text, "") for text in reply["matches"]}

    def explained(self, code: str) -> str:
        """Return what Shift-Tab shows at the end of a cell; "" if it shows nothing."""
        reply = self._client.inspect(code, reply=True, timeout=60)["content"]
        return reply["data"].get("text/plain", "") if reply["found"] else ""
