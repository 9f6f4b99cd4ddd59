"""What a user sees of the output of a user's code: lines, and objects that a notebook shows, changes and clears."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from xpulab.deploy.plan.probe import core_ranges
from xpulab.deploy.tasks.merging import Line
from xpulab.report.rendering import in_notebook
from xpulab.sharing.transcript import CLEARS, SHOWN, Shown, shown

__all__ = ["Page", "is_notebook", "show_object"]


@dataclass(frozen=True)
class _Entry:
    """A line, or an object, of these ranks; a line without ranks is a message of xpulab."""

    ranks: tuple[int, ...]
    text: str
    thing: Shown | None = None

    def show(self) -> None:
        if not self.ranks:
            print(self.text, file=sys.stderr)
        elif self.thing is None:
            print(f"[{core_ranges(self.ranks)}] {self.text}", flush=True)
        else:
            show_object(self.ranks, self.thing)


class Page:
    """Prints lines and objects. In a notebook, a rank may clear what the page has of it; the rest is shown once more.

    A line that several ranks share goes on under the names of the others.
    """

    def __init__(self) -> None:
        self._entries: list[_Entry] = []  # of a notebook: a terminal clears nothing
        self._clearing: set[int] = set()  # ranks that have asked to clear their output before the next of it

    def line(self, line: Line) -> None:
        """Show a line of a rank, or the object that is in it."""
        mark, is_object, thing = line.partition(SHOWN)
        wait = CLEARS.get(is_object + thing)
        if not is_notebook():
            if not is_object:
                print(line, flush=True)
            elif wait is None:
                show_object(line.ranks, shown(thing), mark)
        elif wait is None:
            text = line.partition("] ")[2]
            self._add(_Entry(line.ranks, text, shown(thing) if is_object else None))
        else:
            self._clearing.update(line.ranks)
            if not wait:
                self._clear(line.ranks, follows=False)

    def message(self, text: str) -> None:
        """Show a message of xpulab, which no rank clears."""
        self._add(_Entry((), text))

    def _add(self, entry: _Entry) -> None:
        thing = entry.thing
        if thing is not None and thing["update"]:
            kept: Shown = {**thing, "update": False}
            same = [each.thing is not None and each.thing["id"] == thing["id"] for each in self._entries]
            self._entries = [
                replace(each, thing=kept) if is_it else each for each, is_it in zip(self._entries, same, strict=True)
            ]
        else:
            self._clear(self._clearing.intersection(entry.ranks), follows=True)
            if is_notebook():
                self._entries.append(entry)
        entry.show()

    def _clear(self, ranks: Collection[int], follows: bool) -> None:
        """Clear what these ranks have shown; `follows` says whether new output follows at once."""
        self._clearing.difference_update(ranks)
        if not ranks or not any(set(ranks).intersection(entry.ranks) for entry in self._entries):
            return
        left = [(entry, tuple(rank for rank in entry.ranks if rank not in ranks)) for entry in self._entries]
        self._entries = [replace(entry, ranks=kept) for entry, kept in left if kept or not entry.ranks]
        from IPython.display import clear_output  # a notebook has imported it

        clear_output(wait=follows or bool(self._entries))  # type: ignore[no-untyped-call]
        for entry in self._entries:
            entry.show()


def show_object(ranks: Sequence[int], thing: Shown, mark: str = "") -> None:
    """Show an object of these ranks: in a notebook as its own objects, elsewhere its text, each line after a mark."""
    who, text = core_ranges(ranks), str(thing["data"].get("text/plain", ""))
    is_figure = "figure" in thing
    if not is_notebook():
        if is_figure:
            text += f"; its PNG is in xpulab.current_cluster().last_output.figures[{ranks[0]}][{thing['figure']}]"
        for line in text.splitlines():
            print(f"{mark or f'[{who}] '}{line}", flush=True)
        return
    from IPython.display import publish_display_data  # a notebook has imported it

    if not thing["update"]:
        print(f"[{who}] {text}" if is_figure else f"[{who}]", flush=True)
    metadata = {"image/png": {"alt": f"figure of rank {who}"}} if is_figure else thing["metadata"]
    known = {"transient": {"display_id": thing["id"]}} if thing["id"] else {}
    publish_display_data(thing["data"], metadata, update=thing["update"], **known)  # type: ignore[no-untyped-call]


def is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    return in_notebook(sys.modules.get("IPython") and sys.modules["IPython"].get_ipython())
