"""The solutions of a notebook's exercises, as cells that run in the notebook's own kernel before its engines stop."""

from __future__ import annotations

import os
import re
import signal
import textwrap
import threading
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import nbformat
import pytest
from nbval.plugin import IPyNbCell

#: Statements of a notebook, as assertions about the variables of its cells and solutions. They are about counts and
#: results only: the seconds in a notebook were measured on a quiet machine, and the machine of the tests may be busy.
STATEMENTS = {
    "02": """
        # "leave at best about two thirds of its inertia"
        assert 0.2 < 1 - inertias[12] / inertias[6] < 0.9, inertias
        """,
    "03": """
        import os, re
        even = km.report_
        assert len(even.iterations) == 20  # "exactly 20 iterations"
        shapes = even.launch_shapes
        assert re.fullmatch(r"\\d+x\\d+x\\d+, span \\d+ \\((default|tuned).*\\)", shapes), shapes
        # "If there are more engines than cores, the engines share cores, and the start says so"
        cores = len(os.sched_getaffinity(0))
        assert len(said[4]) == (4 > cores)
        # "One engine already uses all cores"
        assert len(best[1].report_.engines[0].cores or range(cores)) == cores
        # "Engine 1 has a fiftieth of the rows"
        assert engine.rows == 10_000
        """,
    "04": """
        %%xpu
        print("here again")  # "the next cell works"
        """,
    "06": """
        # "The coefficients change", "R2 falls a little", "Nearly all"
        assert not np.allclose(raw.coef_, model["linearregression"].coef_[4:], rtol=0.1)
        assert 0.001 < r2 - r2_score(y_test, raw.predict(X_test[numbers])) < 0.1
        assert PCA(2).fit(X_train[numbers]).explained_variance_ratio_[0] > 0.9
        """,
    "09": """
        first, second, third, fourth = [engine.host for engine in c.status().engines]
        assert first == second != third == fourth  # "The column *host* of the status says where each engine runs"
        assert endless.report_.status == "interrupted"  # "The Stop button ... ends a fit on all engines of both hosts"
        """,
    "12": """
        assert "31 % of the rows were kept on the engines" in weather.report_.notes[0]
        assert "by k-means|| in 6 passes" in weather.report_.notes[1]
        assert in_passes.report_.notes and not in_memory.report_.notes
        # "None are kept", "stays the same to rounding"
        assert "0 % of the rows were kept on the engines (0 of 2,400,000)" in nothing.report_.notes[0]
        np.testing.assert_allclose(nothing.inertia_, in_memory.inertia_, rtol=1e-6)
        """,
    "13": """
        assert search.n_candidates_ == [9, 3, 1]  # "nine candidates", "the best third more of them"
        # "Two fifths of what the model knew beyond chance are gone"
        poor = roc_auc_score(test["late"], without.predict_proba(test[four])[:, 1])
        assert 0.3 < (area(best) - poor) / (area(best) - 0.5) < 0.5, (area(best), poor)
        """,
}
#: Code of a solution -> the output that the notebook's text says.
PRINTED = {
    "print(comm.allgather(": "[0-3] [0, 1, 4, 9]\n",
    'print("here again")': "[0-3] here again\n",
    "print(len(loader))": "[0-1] 22\n",
}
#: Code of a solution -> a line of its output.
LINES = {
    "print(comm.alltoall(": "[1] ['01', '11', '21', '31']",
    "print(bool(torch.equal(ours,": "[1] False",
    'print("the file is here:"': "[2-3] the file is here: False",
    "HistGradientBoostingClassifier().fit(X, y)": "type: categorical_features=['depot', 'vehicle']",
    "DBSCAN().fit(scaled)": "all of which this call needs at once",
}


def solutions_of(notebook: Any) -> list[str]:
    """Return the Python code of all solutions of a notebook."""
    (text,) = (cell.source for cell in notebook.cells if cell.source.startswith("## Exercises"))
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


class Solution(IPyNbCell):
    """A further cell of the notebook. Known outputs are compared, and Stop ends a cell that waits for ever."""

    def runtest(self) -> None:
        source = self.cell.source
        endless = "\ncomm.recv(" in source
        if endless:
            self.options["check_exception"] = True
            # On a busy machine the cell needs longer until it waits.
            seconds = 3 * max(1, os.getloadavg()[0] / len(os.sched_getaffinity(0)))
            stop = threading.Timer(seconds, os.kill, (self.parent.kernel.km.provisioner.pid, signal.SIGINT))
            stop.start()
        super().runtest()
        if endless:
            stop.cancel()  # on a very busy machine the error that no rank can answer comes first
        said = str(self.test_outputs)
        if endless:
            assert "KeyboardInterrupt" in said or "NeverAnsweredError" in said
            # "the error says where each of them was"
            assert all(f"rank {rank}" in said for rank in range(4)) or "0-3" in said or "0, 1, 2, 3" in said, said
        assert [line for begin, line in LINES.items() if begin in source and line not in str(self.printed())] == []

    def printed(self) -> list[str]:
        """Return the output of the cell, stream by stream."""
        return [output.text for output in self.test_outputs if output.output_type == "stream"]


def with_solutions(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield the items, with the solutions before the last cell of each whole notebook, which stops its engines."""
    cells: dict[Any, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if isinstance(item, IPyNbCell):
            cells[item.parent].append(item)
    for item in items:
        file: Any = item.parent
        every = cells.get(file, [])
        if every and item is every[-1] and len(every) == sum(cell.cell_type == "code" for cell in file.nb.cells):
            yield from _solutions(file)
        yield item


def _solutions(file: Any) -> Iterator[Solution]:
    statement = textwrap.dedent(STATEMENTS.get(file.path.name[:2], "")).strip()
    for number, source in enumerate([*solutions_of(file.nb), *([statement] if statement else [])], 1):
        printed = [text for begin, text in PRINTED.items() if begin in source]
        cell = nbformat.v4.new_code_cell(source)
        if printed:
            cell.execution_count, cell.outputs = 1, [nbformat.v4.new_output("stream", text=printed[0])]
        options = defaultdict(bool, check=bool(printed))
        yield Solution.from_parent(file, name=f"Solution {number}", cell_num=number, cell=cell, options=options)
