"""``%xpu_cluster``, ``%%xpu`` and ``%%xpu_profile``: parse a line, make the call, and return its result."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import re
import shlex
from collections.abc import Mapping
from typing import Any

from IPython.core.completer import CompletionContext, context_matcher
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from IPython.display import display
from traitlets import Bool, Enum, Float, Int, Unicode

from xpulab import widgets
from xpulab.acceleration import active
from xpulab.calls import interruptible, saying
from xpulab.console import errors, first_use
from xpulab.console.background import BackgroundCell
from xpulab.console.cell_options import cell_parser, profile_parser
from xpulab.console.cells import Cell, run_cell
from xpulab.console.commands import Help, Parser, add_options, ended_call, given, natural
from xpulab.console.completion import Offered, TypedCell, explaining, names_in_cell, words_in_line
from xpulab.console.every_cell import OFF, EveryCell, auto_parser
from xpulab.deploy.all_clusters import AllClusters, all_clusters
from xpulab.deploy.cluster import XPUCluster, clusters
from xpulab.deploy.current import current_cluster, find_current, latest_cluster, latest_start
from xpulab.deploy.network.addresses import addresses
from xpulab.deploy.network.ports import ports
from xpulab.deploy.options import OPTIONS, PLACES, StartOptions, count
from xpulab.deploy.processes.record import find
from xpulab.deploy.remote.hosts import look
from xpulab.deploy.remote.keys import make_keys
from xpulab.deploy.status import ClusterStatus
from xpulab.exceptions import ClusterError, NoClusterError, UsageError
from xpulab.report import kept
from xpulab.report.profile import profiled
from xpulab.report.rendering import Text, counted
from xpulab.report.task import DISPLAYS
from xpulab.widgets.board import board

__all__ = ["XPUMagics", "load", "unload"]

_NAME = "xpu_cluster"
_DEFAULTS = StartOptions()
_LINE = re.compile(rf"^(?:.*=\s*%|\s*%?){_NAME}\s+(.*)$")  # also as c = %xpu_cluster …
_AUTO = re.compile(r"^\s*%?autoxpu\s+(.*)$")
_CELL_HELP = re.compile(r"^%%(xpu|xpu_profile)\s.*(-h|--help)\b")
_QUESTION = re.compile(rf"^(\s*%?{_NAME}\b)(\s+\w+)?[^#]*\?\s*$")


@magics_class
class XPUMagics(Magics):
    """The magics; the traits are the line magic's defaults: ``%config XPUMagics.n = 4``."""

    n = Int(_DEFAULTS.n, allow_none=True, help="Default number of engines for start and plan.").tag(config=True)
    devices = Unicode(_DEFAULTS.devices, allow_none=True, help="Default devices for start and plan.").tag(config=True)
    strict = Bool(
        _DEFAULTS.strict,
        allow_none=True,
        help="Whether it is an error if engines share cores or a device; by default, if more than 8 share a core.",
    ).tag(config=True)
    timeout = Float(_DEFAULTS.timeout, help="Seconds after which a start that has not ended fails.").tag(config=True)
    recover = Bool(_DEFAULTS.recover, help="Whether a fit continues after engines are lost.").tag(config=True)
    display = Enum(DISPLAYS, _DEFAULTS.display, help="How calls of estimators are shown.").tag(config=True)
    silence = Float(_DEFAULTS.silence, help="Seconds without a sign of life after which an engine counts as lost.").tag(
        config=True
    )

    def __init__(self, shell: InteractiveShell | None) -> None:
        super().__init__(shell)
        self._every_cell = EveryCell()
        self._cells = cell_parser()  # making it takes longer than a short cell

    @line_magic(_NAME)  # type: ignore[arg-type]
    def xpu_cluster(self, line: str) -> Any:
        """Start, inspect and stop the engines; ``%xpu_cluster -h`` lists the subcommands."""

        def called() -> Any:
            arguments = self.parser().parse_args(_words(line))
            return arguments.call(arguments)

        try:
            return saying(called, lambda _: f"%{_NAME} {line.strip()}")()
        except Help as text:
            print(text)
            return None

    @line_magic("autoxpu")  # type: ignore[arg-type]
    def autoxpu(self, line: str) -> None:
        """Run every cell on the engines."""
        try:
            what = _parsed("%autoxpu", auto_parser(), line).what
        except Help as text:
            print(text)
            return
        assert self.shell is not None
        if what is not None:
            size = current_cluster().size if what == "on" else 0
            self._every_cell.turn(self.shell, what == "on")
            if what == "on":
                print(f"every cell now runs on {counted(size, 'engine')}; to run cells in the notebook, type: {OFF}")
        else:
            print(f"on; to turn it off, type: {OFF}" if self._every_cell.on else "off")

    @cell_magic("xpu")  # type: ignore[arg-type]
    def xpu(self, line: str, cell: str) -> BackgroundCell | None:
        """Run the cell on every engine."""
        try:
            arguments = _parsed("%%xpu", self._cells, line)
        except Help as text:
            print(text)
            return None
        if self._every_cell.on and find_current() is None:
            raise NoClusterError(f"no cluster is running; type: %{_NAME} start, or to run cells in the notebook: {OFF}")
        cluster, variables = current_cluster(), self.shell.user_ns if self.shell is not None else {}
        for names, scatter in ((arguments.whole, False), (arguments.scatter, True)):
            if names:
                cluster.push(_looked_up(names, variables), ranks=arguments.ranks, scatter=scatter)
        if arguments.background is None:
            variables.update(run_cell(cluster, cell, arguments.ranks, arguments.out).values)
            return None
        result = BackgroundCell(
            Cell(cluster, cell, arguments.ranks, arguments.out), lambda output: variables.update(output.values)
        )
        if arguments.background != "_":
            variables[arguments.background] = result
        return result

    @cell_magic("xpu_profile")  # type: ignore[arg-type]
    def xpu_profile(self, line: str, cell: str) -> Any:
        """Show where the time of the cell went, and return its value."""
        try:
            arguments = _parsed("%%xpu_profile", profile_parser(), line)
        except Help as text:
            print(text)
            return None
        assert self.shell is not None
        try:
            with profiled() as profile:
                return _value_of(self.shell, cell)
        finally:
            if arguments.out is not None:
                self.shell.user_ns[arguments.out] = profile
            display(profile)

    @context_matcher(identifier=f"xpulab.{_NAME}")
    def complete(self, context: CompletionContext) -> Offered:
        """Words of the magics' lines, and names of the ranks in cells there; a matcher of IPython's completer."""
        if line := _LINE.match(context.text_until_cursor):
            return words_in_line(self.parser(), line[1])
        if line := _AUTO.match(context.text_until_cursor):
            return words_in_line(auto_parser(), line[1])
        cell, at = TypedCell(context.full_text, self._every_cell.on), context.cursor_line
        if at < len(cell.magics):
            name, space, typed = context.text_until_cursor.partition(" ")
            parsers = {"%%xpu": lambda: cell_parser(self._variables()), "%%xpu_profile": profile_parser}
            if space and name in parsers:
                return words_in_line(parsers[name](), typed)
        elif cell.on_ranks:
            return names_in_cell(find_current(), cell.source, at - len(cell.magics), context.cursor_position)
        return {"completions": []}

    def _variables(self) -> list[str]:
        """Return the names of the notebook's variables, without those that IPython has made."""
        shell = self.shell
        return [] if shell is None else [name for name in shell.user_ns if name not in shell.user_ns_hidden]

    def explained(self, code: str, at: int, name: str, detail: int) -> Mapping[str, str] | None:
        """Text about a word of the magic's line, or a name of the ranks in a cell there; see `explaining`."""
        if line := _LINE.match(code[:at].rpartition("\n")[2]):
            return {"text/plain": self.parser().at([*line[1].split(), name]).format_help()}
        cell = TypedCell(code, self._every_cell.on)
        if not cell.on_ranks or at < len(code) - len(cell.source):
            return None
        cluster = find_current()
        found = cluster and cluster.variables.completion.explained(name, detail)
        html = self.shell is not None and self.shell.enable_html_pager
        return {kind: text for kind, text in (found or {}).items() if html or kind != "text/html"}

    def parser(self) -> Parser:
        """Return the parser of the line, with the defaults as they are now."""
        parser = Parser(
            prog=f"%{_NAME}", description="Start, inspect and stop the engines of xpulab, one for each device."
        )
        commands = parser.add_subparsers(dest="command", metavar="SUBCOMMAND", required=True, parser_class=Parser)
        self._add_starts(parser, commands)
        _add_ends(parser, commands)
        self._add_shown(parser, commands)
        _add_accel(parser, commands)
        parser.command(
            commands, "doctor", lambda _: _doctor(), "check this machine, and say what to type if something is missing"
        )
        return parser

    def _add_starts(self, parser: Parser, commands: argparse._SubParsersAction[Parser]) -> None:
        """Add the subcommands that begin to use a cluster, or say what a start would do."""
        defaults = {name: getattr(self, name) for name in self.trait_names(config=True)}
        start = parser.command(commands, "start", self._start, "start the engines, and return the cluster")
        add_options(start, OPTIONS, **defaults)
        plan = parser.command(commands, "plan", _plan, "show which engine would run on which device; starts nothing")
        add_options(plan, PLACES, **defaults)
        plan.add_argument("--show", action="store_true", help="show the command line, too, that starts the engines")
        hosts = parser.command(
            commands, "hosts", _hosts, "check hosts before a start: ssh, versions, MPI and devices, and what to type"
        )
        hosts.add_argument("hosts", nargs="?", metavar="A,B", help="the hosts, as ssh knows them: node1,node2")
        hosts.add_argument("--hostfile", metavar="FILE", help="file that names them, as for start")
        hosts.add_argument(
            "--make-keys", action="store_true", help="make a key for ssh, and install it where ssh asks for a password"
        )
        add_options(hosts, ("ssh_config", "mpi", "ports"))
        attach = parser.command(commands, "attach", self._attach, "use a cluster that another kernel of yours started")
        attach.add_argument("name", nargs="?", metavar="NAME", help="name of the cluster, if there are several")
        attach.offers["name"] = lambda: [record.name for record in find() if record.facts]

    def _add_shown(self, parser: Parser, commands: argparse._SubParsersAction[Parser]) -> None:
        """Add the subcommands that show a cluster and its calls, or set how calls are shown."""
        status = parser.command(commands, "status", _status, "show engines, devices, memory and health")
        status.add_argument(
            "--all", dest="of_all", action="store_true", help="all clusters of the host that you may see"
        )
        parser.command(
            commands, "devices", lambda _: _devices(), "show the devices of this machine, and which engine uses each"
        )
        parser.command(commands, "board", lambda _: board(), "show engines, calls and timelines beside the notebook")
        parser.command(
            commands, "names", lambda _: current_cluster().names(), "show the variables and rows that are on the ranks"
        )
        logs = parser.command(commands, "logs", _logs, "show the last log lines of the controller and the engines")
        logs.add_argument("--lines", type=count, default=40, metavar="K", help="number of lines of each log")
        parser.command(
            commands,
            "resume",
            lambda _: current_cluster().stopped().resume(),
            "go on with the fit that was interrupted last, and return its estimator",
        )
        last = parser.command(commands, "last", _last, "show the report of the last fit or predict")
        last.add_argument("--output", action="store_true", help="show the whole output of the last %%%%xpu cell")
        display = parser.command(
            commands, "display", self._display, "say or set how calls of estimators are shown, now and after a start"
        )
        display.add_argument(
            "how",
            nargs="?",
            choices=DISPLAYS,
            help="full: a report, or a table if a cell has several calls; compact: always a table; none: nothing",
        )

    def _start(self, arguments: argparse.Namespace) -> XPUCluster:
        running = find_current()
        if running is None or running.status().state != "running":
            if running is not None:
                running.stop()
            return XPUCluster(**given(arguments)).start()
        engines = counted(running.size, "engine")
        if wanted := _changes(arguments, running):
            devices = running.options.devices or "all devices"
            raise ClusterError(
                f"a cluster of {engines} is already running on {devices}; to start one with {wanted}, "
                f"type: %{_NAME} stop, and then %{_NAME} start {wanted}"
            )
        print(f"a cluster of {engines} is already running; it was returned.")
        return running

    def _attach(self, arguments: argparse.Namespace) -> XPUCluster:
        cluster = XPUCluster.attach(arguments.name)
        cluster.display = self.display
        return cluster

    def _display(self, arguments: argparse.Namespace) -> str | None:
        cluster = find_current()
        if arguments.how is None:
            return cluster.display if cluster else self.display
        self.display = arguments.how
        if cluster:
            cluster.display = arguments.how
        return None


def _add_ends(parser: Parser, commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the subcommands that end a cluster, or leave it."""
    parser.command(commands, "detach", _detach, "leave the cluster, which keeps running until someone stops it")
    stop = parser.command(commands, "stop", _stop, "end every process of the cluster, for all attached notebooks")
    stop.add_argument(
        "--call", dest="only_call", action="store_true", help="end only the call that runs, of whichever process"
    )
    parser.command(
        commands,
        "restart",
        lambda _: latest_start().restart(),
        "stop the cluster, if it is running, and start it again with the same settings",
    )


def _add_accel(parser: Parser, commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the subcommand for scikit-learn's names."""
    accel = parser.command(
        commands, "accel", _accel, "let scikit-learn's names compute on the engines; show what ran where"
    )
    accel.add_argument(
        "what",
        nargs="?",
        choices=("on", "off", "status"),
        default="status",
        help="on: from now on; off: leave scikit-learn as it was; status: show sizes, and what ran where so far",
    )
    accel.add_argument(
        "--strict", action="store_true", help="with on: a call that scikit-learn would have to compute is an error"
    )
    accel.add_argument(
        "--least",
        type=natural,
        metavar="N",
        help="with on: smallest number of values that the engines compute, in place of the table's sizes",
    )


def _changes(arguments: argparse.Namespace, running: XPUCluster) -> str:
    """Options of a start that a running cluster does not have, as they are typed; "" if it has all of them."""
    now = dataclasses.replace(running.options, n=running.size)
    lasting = {name: value for name, value in given(arguments).items() if OPTIONS[name].lasting}
    asked = {name: value for name, value in lasting.items() if value != getattr(_DEFAULTS, name)}
    if all(value == getattr(now, name) for name, value in asked.items()):
        return ""
    return " ".join(OPTIONS[name].typed(getattr(arguments, name)) for name in asked)


def _parsed(magic: str, parser: Parser, line: str) -> argparse.Namespace:
    with interruptible(f"{magic} {line}".strip()):
        return parser.parse_args(_words(line))


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        raise UsageError(f"{error} in: {line}") from None


def _plan(arguments: argparse.Namespace) -> Any:
    return XPUCluster(**given(arguments)).plan(show=arguments.show)


def _hosts(arguments: argparse.Namespace) -> Any:
    if arguments.hosts is None and arguments.hostfile is None:
        arguments.parser.error("expected names of hosts, such as node1,node2, or --hostfile FILE")
    named = addresses(arguments.hosts, arguments.hostfile)
    if arguments.make_keys:
        return make_keys(named, arguments.ssh_config)
    return look(named, arguments.ssh_config, arguments.mpi, among=ports(arguments.ports))


def _detach(arguments: argparse.Namespace) -> ClusterStatus:
    cluster = current_cluster()
    cluster.detach()
    return cluster.status()


def _stop(arguments: argparse.Namespace) -> ClusterStatus:
    cluster = current_cluster()
    if arguments.only_call:
        print(ended_call(cluster.stop_call()))
        return cluster.status()
    label = cluster.label
    cluster.stop()
    if other := find_current():
        print(f"the cluster {label} was stopped; the active cluster is now {other.label}")
    return cluster.status()


def _status(arguments: argparse.Namespace) -> ClusterStatus | AllClusters:
    if arguments.of_all:
        return all_clusters()
    if cluster := find_current():
        return dataclasses.replace(cluster.status(), cluster=cluster)
    left = next((each for each in clusters.latest if each.engines.left), None)
    return left.status() if left else ClusterStatus("stopped", 0)


def _devices() -> Any:
    from xpulab.deploy.devices import devices

    return devices(find_current())


def _logs(arguments: argparse.Namespace) -> Text:
    return Text(latest_start().logs(arguments.lines))


def _looked_up(names: list[str], variables: Mapping[str, object]) -> dict[str, object]:
    if missing := [name for name in names if name not in variables]:
        raise UsageError(f"there is no variable {missing[0]} in the notebook; expected one that a cell has made")
    return {name: variables[name] for name in names}


def _document() -> None:
    """Make the help of the parsers the text that ``?`` shows: ``%%xpu?`` and ``%%xpu -h`` say the same."""
    parsers = {"xpu_cluster": XPUMagics(None).parser(), "xpu": cell_parser(), "xpu_profile": profile_parser()}
    parsers["autoxpu"] = auto_parser()
    for name, parser in parsers.items():
        vars(XPUMagics)[name].__doc__ = parser.format_help()


def _value_of(shell: InteractiveShell, cell: str) -> Any:
    """Run a cell as the shell would, and return the value of its last line if it is an expression."""
    source = shell.transform_cell(cell)
    name = shell.compile.cache(source, shell.execution_count)
    tree = shell.transform_ast(shell.compile.ast_parse(source, filename=name))
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(shell.compile(tree, name, "exec"), shell.user_global_ns, shell.user_ns)
    if last is None:
        return None
    return eval(shell.compile(ast.Expression(last.value), name, "eval"), shell.user_global_ns, shell.user_ns)


def _accel(arguments: argparse.Namespace) -> Any:
    if arguments.what != "on" and (arguments.strict or arguments.least is not None):
        arguments.parser.error("--strict and --least go with on: accel on --strict")
    from xpulab import acceleration  # imports scikit-learn, which takes most of a second

    if arguments.what == "on":
        return acceleration.accel(strict=arguments.strict, least=arguments.least)
    if arguments.what == "off" and (on := active()) is not None:
        on.off()
    return acceleration.status()


def _last(arguments: argparse.Namespace) -> Any:
    if arguments.output:
        output = latest_cluster().last_output
        if output is None:
            print("no %%xpu cell and no function of run has run on this cluster yet")
        return output and output.text()
    try:
        report = latest_cluster().last() or kept.latest()
    except NoClusterError:  # the kernel was restarted
        report = kept.latest()
        if report is None:
            raise
    if report is None:
        print("no estimator has run on this cluster yet; fit one, for example xpulab.cluster.KMeans")
    return report


def _doctor() -> Any:
    from xpulab.doctor import doctor

    return doctor()


def _help_at_end(lines: list[str]) -> list[str]:
    """``%xpu_cluster start?`` means ``%xpu_cluster start -h``: IPython would look for an object called start."""
    if len(lines) == 1 and _CELL_HELP.match(lines[0]):  # IPython refuses a cell magic without a body
        return [*lines, "\n"]
    return [_QUESTION.sub(r"\1\2 -h\n", line) for line in lines]


def load(ipython: InteractiveShell) -> None:
    """Register the magics, their completion and the views. Repeated calls do nothing."""
    if "XPUMagics" in ipython.magics_manager.registry:
        return
    first_use.forget(ipython)
    errors.install(ipython)
    magics = XPUMagics(ipython)
    ipython.register_magics(magics)
    ipython.Completer.custom_matchers.append(magics.complete)
    if (kernel := getattr(ipython, "kernel", None)) is not None:
        kernel.do_inspect = explaining(kernel.do_inspect, magics.explained)
    ipython.input_transformers_cleanup.append(_help_at_end)
    widgets.install(ipython)


def unload(ipython: InteractiveShell) -> None:
    """Undo `load`, turn accel off, stop this process's clusters, and leave the detached ones."""
    if (on := active()) is not None:
        on.off()
    while (cluster := find_current()) is not None:
        cluster.end()
    widgets.uninstall()
    errors.uninstall(ipython)
    magics = ipython.magics_manager.registry.pop("XPUMagics")
    magics._every_cell.turn(ipython, on=False)
    for kind, names in first_use.NAMES.items():
        for name in names:
            ipython.magics_manager.magics[kind].pop(name)
    ipython.Completer.custom_matchers.remove(magics.complete)
    if (kernel := getattr(ipython, "kernel", None)) is not None:
        del kernel.do_inspect  # that of its class comes back
    ipython.input_transformers_cleanup.remove(_help_at_end)
    ipython.configurables.remove(magics)


_document()
