"""``%xpu_cluster``: parse a line, make the call, hand back what it returned."""

from __future__ import annotations

import re
import shlex
from typing import Any

from IPython.core.magic import Magics, line_magic, magics_class
from traitlets import Bool, Float, Int, Unicode

from xpulab import widgets
from xpulab.commands import Help, Parser, add_placement
from xpulab.deploy.cluster import XPUCluster, current_cluster, find_current
from xpulab.deploy.status import ClusterStatus
from xpulab.exceptions import ClusterError

__all__ = ["XPUMagics", "load", "unload"]

_NAME = "xpu_cluster"


@magics_class
class XPUMagics(Magics):
    """The line magic; its traits are the defaults: ``%config XPUMagics.n = 4``."""

    n = Int(None, allow_none=True, help="Engines that start and plan assume.").tag(config=True)
    devices = Unicode(None, allow_none=True, help="Devices that start and plan assume.").tag(config=True)
    strict = Bool(False, help="Whether sharing cores or a device is an error.").tag(config=True)
    timeout = Float(30.0, help="Seconds that the engines have to start.").tag(config=True)

    @line_magic(_NAME)  # type: ignore[arg-type]
    def xpu_cluster(self, line: str) -> Any:
        """Start, look at and stop the engines; ``%xpu_cluster -h`` lists the subcommands."""
        try:
            arguments = self.parser().parse_args(shlex.split(line))
            return arguments.call(arguments)
        except Help as text:
            print(text)
            return None

    def parser(self) -> Parser:
        """The parser of the line, with the defaults as they are now."""
        parser = Parser(prog=f"%{_NAME}", description="The engines of xpulab: one for each device.")
        commands = parser.add_subparsers(dest="command", metavar="SUBCOMMAND", required=True, parser_class=Parser)
        start = parser.command(commands, "start", self._start, "start the engines; returns the cluster")
        plan = parser.command(commands, "plan", _plan, "show which engine would go on which device; starts nothing")
        for command in (start, plan):
            add_placement(command, self.n, self.devices, self.strict)
        start.add_argument("--timeout", type=float, default=self.timeout, metavar="S", help="seconds to start in")
        parser.command(commands, "stop", _stop, "end every process of the cluster")
        parser.command(commands, "restart", lambda _: current_cluster().restart(), "stop, and start as before")
        parser.command(commands, "status", lambda _: _status(), "show engines, devices, memory and health")
        parser.command(commands, "devices", lambda _: _devices(), "list the devices of this machine")
        logs = parser.command(commands, "logs", _logs, "show the last words of the controller and the engines")
        logs.add_argument("--lines", type=int, default=40, metavar="K", help="how many of each")
        parser.command(commands, "last", lambda _: _last(), "show the report of the last fit or predict")
        parser.command(commands, "doctor", lambda _: _doctor(), "check this machine; says what to type where it fails")
        return parser

    def _start(self, arguments: Any) -> XPUCluster:
        running = find_current()
        if running is not None:
            wanted = arguments.n
            if wanted is not None and wanted != running.size:
                raise ClusterError(
                    f"a cluster of {running.size} engines is running, and {wanted} were asked for; "
                    f"type: %xpu_cluster stop, and then %xpu_cluster start -n {wanted}"
                )
            print(f"a cluster of {running.size} engines is running already; this is the one.")
            return running
        return XPUCluster(
            arguments.n, devices=arguments.devices, strict=arguments.strict, timeout=arguments.timeout
        ).start()


def _plan(arguments: Any) -> Any:
    return XPUCluster(arguments.n, devices=arguments.devices, strict=arguments.strict).plan()


def _stop(arguments: Any) -> ClusterStatus:
    current_cluster().stop()
    return ClusterStatus("stopped", 0)


def _status() -> ClusterStatus:
    cluster = find_current()
    return cluster.status() if cluster else ClusterStatus("stopped", 0)


def _devices() -> Any:
    from xpulab.deploy.probe import probe

    return probe()


def _logs(arguments: Any) -> None:
    print(current_cluster().logs(arguments.lines))


def _last() -> Any:
    report = current_cluster().last_report
    if report is None:
        print("nothing has been computed on this cluster yet; fit an estimator, e.g. xpulab.cluster.KMeans")
    return report


def _doctor() -> Any:
    from xpulab.doctor import doctor

    return doctor()


def _complete(shell: Any, event: Any) -> list[str]:
    """Subcommands after the magic's name, their options after that."""
    words = event.line[: event.text_until_cursor.rfind(event.symbol) if event.symbol else None].split()[1:]
    parser = shell.find_line_magic(_NAME).__self__.parser()
    commands = next(action for action in parser._actions if action.dest == "command").choices
    if not words:
        return [*commands, "-h"]
    return commands[words[0]].words() if words[0] in commands else []


def _help_at_end(lines: list[str]) -> list[str]:
    """``%xpu_cluster start?`` means ``%xpu_cluster start -h``: IPython would look for an object called start."""
    return [re.sub(rf"^(\s*%{_NAME}\s+\w+)\s*\?+\s*$", r"\1 -h\n", line) for line in lines]


def load(ipython: Any) -> None:
    """Register the magic, its completion and the views."""
    ipython.register_magics(XPUMagics)
    ipython.set_hook("complete_command", _complete, re_key=rf"%?{_NAME}")
    ipython.input_transformers_cleanup.append(_help_at_end)
    widgets.install(ipython)


def unload(ipython: Any) -> None:
    """Undo `load`, and stop the cluster."""
    while (cluster := find_current()) is not None:
        cluster.stop()
    widgets.uninstall()
    if _help_at_end in ipython.input_transformers_cleanup:
        ipython.input_transformers_cleanup.remove(_help_at_end)
    hooks = ipython.strdispatchers["complete_command"].regexs
    for pattern in [pattern for pattern in hooks if _NAME in pattern.pattern]:
        del hooks[pattern]
    ipython.magics_manager.magics["line"].pop(_NAME, None)
    ipython.magics_manager.registry.pop("XPUMagics", None)
    ipython.configurables[:] = [item for item in ipython.configurables if not isinstance(item, XPUMagics)]
