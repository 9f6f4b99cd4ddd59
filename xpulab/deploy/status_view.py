"""A cluster's status as HTML and as text."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xpulab.advice import to_attach
from xpulab.deploy.plan.probe import core_ranges
from xpulab.report.html import SHAPE
from xpulab.report.rendering import (
    Html,
    block,
    counted,
    escape,
    format_seconds,
    format_size,
    plain,
    table_html,
    table_text,
)

__all__ = ["shapes_html", "status_html", "status_text"]


def status_html(status: Mapping[str, Any], shapes: bool = True) -> Html:
    """Return a cluster's status as HTML.

    Parameters
    ----------
    status : mapping
        `ClusterStatus.to_dict`, with the number ``n`` of engines. ``engines`` is a list of mappings with the fields of
        `EngineStatus`. A value that is missing or None is shown as a dash. A column whose values are missing for all
        engines is left out.
    shapes : bool
        Whether the launch shapes are below it, folded. A view that is often drawn again would fold them each time.
    """
    header, rows, align = _engines_table(status.get("engines") or ())
    parts = [Html(f"<div><strong>{escape(_name(status))}</strong>: {escape(_summary(status))}</div>")]
    if rows:
        rows = [[_breaking(name, cell) for name, cell in zip(header, row, strict=True)] for row in rows]
        parts.append(table_html(header, rows, align, "Engines"))
    notes = [*(f"⚠ {text}" for text in status.get("warnings") or ()), *(status.get("others") or ())]
    parts += [_note(text) for text in notes]
    parts += [_folded_shapes(status)] if shapes else []
    parts += [_note(said)] if (said := status.get("interrupted")) else []
    return block("Status of the cluster", parts, ".xpu .xpu-word{white-space:nowrap}")


def _note(text: str) -> Html:
    return Html(f'<div class="xpu-note">{escape(text)}</div>')


def shapes_html(status: Mapping[str, Any]) -> Html:
    """Return the launch shapes of a status as HTML, folded; empty if no engine has one."""
    folded = _folded_shapes(status)
    return block("Launch shapes of the engines", [folded]) if folded else Html()


def _folded_shapes(status: Mapping[str, Any]) -> Html:
    if not (said := [*_shapes(status), *_files(status)]):
        return Html()
    about = f"How the engines cut the search for the nearest centre, as of k-means: {SHAPE}. It changes no result."
    lines = "".join(f"<div>{escape(line)}</div>" for line in (*said, about))
    return Html(f"<details><summary>Launch shapes</summary>{lines}</details>")


def _shapes(status: Mapping[str, Any]) -> list[str]:
    """Return the launch shape of each engine, or that of all."""
    shapes: dict[str, list[int]] = {}
    for engine in status.get("engines") or ():
        if shape := engine.get("launch_shape"):
            shapes.setdefault(str(shape), []).append(engine["rank"])
    return [f"engine {core_ranges(ranks)}: {shape}" if len(shapes) > 1 else shape for shape, ranks in shapes.items()]


def _files(status: Mapping[str, Any]) -> list[str]:
    return [f"tuned launch shapes are kept in {_homely(path)}" for path in status.get("launch_shape_files") or ()]


def _breaking(column: str, cell: str) -> str:
    """Return a cell with line breaks at good places: not inside a state, and between used and free memory."""
    first, comma, rest = cell.partition(",")
    if column == "state":
        return Html(f'<span class="xpu-word">{escape(first)}</span>{comma}{escape(rest)}')
    if column.endswith("memory") and rest:
        return Html(f"{escape(first)},<br>{escape(rest)}")
    return cell


def status_text(status: Mapping[str, Any]) -> str:
    """Return a cluster's status as text; `status_html` describes ``status``."""
    header, rows, align = _engines_table(status.get("engines") or ())
    lines = [plain(f"{_name(status)}: {_summary(status)}")]
    lines += [table_text(header, rows, align)] if rows else []
    shapes = _shapes(status)
    lines += [f"  launch shapes, by which k-means cuts its work: {plain('; '.join(shapes))}"] if shapes else []
    lines += [f"  {plain(line)}" for line in _files(status)]
    lines += [f"  warning: {plain(text)}" for text in status.get("warnings") or ()]
    lines += [f"  {plain(text)}" for text in status.get("others") or ()]
    lines += [f"  {plain(said)}"] if (said := status.get("interrupted")) else []
    return "\n".join(lines)


def _homely(path: str) -> str:
    """Return a path with ~ for the home folder, so that a shared notebook does not show the user's name."""
    home = os.path.expanduser("~")
    return path.replace(home, "~", 1) if path.startswith(home + os.sep) else path


def _name(status: Mapping[str, Any]) -> str:
    return f"xpulab cluster {status['id']}" if status.get("id") else "xpulab cluster"


#: Commands that make a stopped or lost cluster usable again.
_CURES = {"stopped": "%xpu_cluster start", "lost": "%xpu_cluster restart"}


def _summary(status: Mapping[str, Any]) -> str:
    state, n, start = status.get("state") or "unknown", status.get("n"), status.get("seconds_to_start")
    parts = [
        str(state),
        counted(n, "engine") if n else "",
        f"ready after {format_seconds(start)}" if start is not None else "",
        str(status.get("lives") or ""),
    ]
    if state == "left":
        return f"this process has left it, and it goes on; type: {to_attach(status['id'])}"
    cure = f"; type: {_CURES[state]}" if state in _CURES else ""
    return ", ".join(part for part in parts if part) + cure


#: For each column its header, its alignment, the keys that an engine must have, and a function from engine to text.
_COLUMNS: tuple[tuple[str, str, tuple[str, ...], Callable[[Mapping[str, Any]], str]], ...] = (
    ("engine", "r", (), lambda e: str(e.get("rank"))),
    ("state", "l", ("state",), lambda e: _health(e)),
    ("device", "l", ("device",), lambda e: str(e.get("device") or "–")),
    ("--devices", "l", ("selector",), lambda e: str(e.get("selector") or "–")),
    ("device memory", "r", ("device_bytes",), lambda e: _used(e.get("device_bytes"), e.get("device_free"))),
    ("cores", "l", ("cores",), lambda e: "all" if e.get("cores") is None else core_ranges(e["cores"])),
    ("memory", "r", ("memory_used",), lambda e: _used(e.get("memory_used"), e.get("memory_free"))),
    ("host", "l", ("host",), lambda e: str(e.get("host") or "–")),
    ("pid", "r", ("pid",), lambda e: str(e.get("pid") or "–")),
    ("sign of life", "r", ("heartbeat_age_s",), lambda e: _ago(e.get("heartbeat_age_s"))),
)


def _engines_table(engines: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]], str]:
    columns = [c for c in _COLUMNS if not c[2] or any(e.get(key) is not None for e in engines for key in c[2])]
    rows = [[show(engine) for _, _, _, show in columns] for engine in engines]
    return [name for name, *_ in columns], rows, "".join(align for _, align, _, _ in columns)


def _health(engine: Mapping[str, Any]) -> str:
    state = str(engine.get("state") or "unknown")
    mark = {"lost": "✕", "silent": "✕", "ended": "○", "starting": "…", "idle": "●"}.get(state, "▶")
    run, iteration = engine.get("run") or 0, engine.get("iteration") or 0
    where = (f", run {run}" if run > 1 else "") + (f", iteration {iteration}" if iteration else "")
    first = "".join(f", {name} {value:.6g}" for name, value in list((engine.get("metrics") or {}).items())[:1])
    return f"{mark} {state}{where}" + first


def _used(used: float | None, free: float | None) -> str:
    parts = [] if used is None else [f"{format_size(used)} used"]
    parts += [] if free is None else [f"{format_size(free)} free"]
    return ", ".join(parts) or "–"


def _ago(age: float | None) -> str:
    return "–" if age is None else f"{format_seconds(age)} ago"
