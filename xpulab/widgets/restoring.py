"""Gives a page its widgets while a cell runs.

A page that is loaded asks for the states of all widgets, on the channel of cells: ipykernel answers after the cell has
ended, and until then the page has no widget. ipykernel 7 receives these messages in a thread. Here the thread looks at
them, and answers this one at once. With another ipykernel, widgets come after the cell, as those of other packages do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from xpulab.widgets.pages import outside_cells

__all__ = ["restore_while_cells_run"]

_CONTROL = "jupyter.widget.control"  # the target of the comm by which a page asks


def restore_while_cells_run(kernel: Any, busy: Callable[[], bool], then: Callable[[], None]) -> Callable[[], None]:
    """Answer pages that ask for their widgets from now on.

    Parameters
    ----------
    kernel : ipykernel.ipkernel.IPythonKernel
    busy : callable
        Returns whether a cell runs. If none does, ipykernel answers.
    then : callable
        Called after an answer.

    Returns
    -------
    callable
        A function that ends this.
    """
    thread = getattr(kernel, "shell_channel_thread", None)
    handle = getattr(kernel, "shell_channel_thread_main", None)
    if thread is None or handle is None:
        return lambda: None
    opened: set[str] = set()

    def look(parts: list[Any]) -> None:
        _, (_, header, _, _, content, *_) = kernel.session.feed_identities(parts, copy=False)
        kind = kernel.session.unpack(header.bytes)["msg_type"]
        if kind not in ("comm_open", "comm_msg"):
            return
        about = kernel.session.unpack(content.bytes)
        if kind == "comm_open" and about["target_name"] == _CONTROL:
            opened.add(about["comm_id"])
        elif about["comm_id"] in opened and about["data"].get("method") == "request_states":
            opened.discard(about["comm_id"])
            if busy():
                outside_cells(_answer, about["comm_id"])
                then()

    async def received(parts: list[Any]) -> None:
        with contextlib.suppress(Exception):  # whatever happens here, the kernel must get its message
            look(parts)
        await handle(parts)

    def receive_by(function: Any) -> None:
        thread.io_loop.add_callback(lambda: kernel.shell_stream.on_recv(function, copy=False))

    receive_by(received)
    return lambda: receive_by(handle)


def _answer(comm_id: str) -> None:
    """Send the states of all widgets, as ipywidgets does."""
    import comm
    from ipywidgets.widgets.widget import _instances, _remove_buffers

    states = {
        widget.model_id: {
            "model_name": widget._model_name,
            "model_module": widget._model_module,
            "model_module_version": widget._model_module_version,
            "state": widget.get_state(),
        }
        for widget in list(_instances.values())
    }
    states, paths, buffers = _remove_buffers(states)
    page = comm.create_comm(target_name=_CONTROL, comm_id=comm_id, primary=False)
    page.send({"method": "update_states", "states": states, "buffer_paths": paths}, buffers=buffers)
    page._closed = True  # otherwise its deletion would close the comm, which is the page's
