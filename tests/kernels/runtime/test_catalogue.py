"""The catalogue of kernels: it agrees with the sources, and a damaged file is an error that says what to type."""

from __future__ import annotations

import importlib.util
import lzma
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import samples

import xpulab
from xpulab.exceptions import KernelBuildError
from xpulab.kernels import language
from xpulab.kernels.compile.build import PYTHON, kernels_of
from xpulab.kernels.language import Kernel, device_function, kernel
from xpulab.kernels.on_cpu import (
    boosting_functions,
    few_functions,
    forest_functions,
    host,
    tree_functions,
    tree_search_functions,
)
from xpulab.kernels.on_cpu.host_functions import FUNCTIONS
from xpulab.kernels.runtime import catalogue
from xpulab.kernels.runtime.catalogue import COMMAND, Compiled, find, pack, shelf_file, unpack

ROOT = Path(xpulab.__file__).parents[1]
FOLDER = ROOT / "xpulab" / "kernels" / "catalogue"
PACKAGES = ("xpulab.kernels", "tests.kernels")


@pytest.fixture(autouse=True)
def from_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT))


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_every_kernel_is_in_the_catalogue_as_its_source_is_now(package: str) -> None:
    kernels = list(kernels_of(package))
    changed = [kernel.key for kernel in kernels if find(kernel).digest != kernel.digest]
    assert not changed, f"type: {COMMAND} {package}"
    on_disk = {key for path in {shelf_file(k) for k in kernels} for key in unpack(path.read_bytes())[0]}
    assert on_disk == {kernel.key for kernel in kernels}
    assert {shelf_file(k) for k in kernels} == set(kernels[0].folder.glob("*.kernels"))


@pytest.mark.slow
def test_a_sample_compiles_to_what_is_in_the_catalogue() -> None:
    """Each run compares another sample, byte by byte, and the sources of all kernels and of the host's functions."""
    if sys.version_info[:2] != PYTHON:
        pytest.skip("numba compiles bytecode, which differs between Pythons")
    command = [sys.executable, "-m", "xpulab.kernels.compile.build", "--check", "1", *PACKAGES]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_another_python_is_told_which_one_compiles() -> None:
    command = [sys.executable, "-m", "xpulab.kernels.compile.build", "--check", "0", "tests.kernels"]
    done = subprocess.run(command, capture_output=True, text=True)
    if sys.version_info[:2] == PYTHON:
        assert done.returncode == 0, done.stderr
    else:
        assert "kernels are compiled with Python 3.11, and this is" in done.stderr


def test_the_catalogue_is_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 3.5e6


def test_the_host_s_functions_are_in_a_library_for_each_level() -> None:
    assert {path.name for path in FOLDER.glob("*.so")} == {host.library_file(level).name for level in host.LEVELS}
    called = {name for name in host.__all__ if name.islower()} - {"at", "function_of", "functions", "library_file"}
    modules = boosting_functions, few_functions, forest_functions, tree_functions, tree_search_functions
    in_passing = {"add_gradients", "facts_of_rows", "products_of_rows", "sparse_times", "take_steps"}
    inlined = {"root_in", "unite"}
    assert called.union(in_passing, *(module.__all__ for module in modules)) - inlined == set(FUNCTIONS)


class Placed(Kernel):
    """A kernel whose catalogue is in another folder."""

    place: Path

    @property
    def folder(self) -> Path:
        return self.place


@pytest.fixture
def placed(tmp_path: Path) -> Placed:
    whole = samples.divide()
    kernel = Placed(whole.function, whole.signature, whole.shelf)
    object.__setattr__(kernel, "place", tmp_path / "package" / "catalogue")
    kernel.place.mkdir(parents=True)
    shutil.copy(shelf_file(whole), kernel.place)
    return kernel


def test_a_kernel_is_found(placed: Placed) -> None:
    assert find(placed) == find(samples.divide())


def flipped(content: bytes) -> bytes:
    return content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda content: b"", 'it begins with "", and "xpulab kernels, format 1" was expected'),
        (lambda content: content.replace(b"format 1", b"format 9"), 'it begins with "xpulab kernels, format 9"'),
        (lambda content: content[:-5], "its content is not what was written"),
        (flipped, "its content is not what was written"),
    ],
)
def test_a_damaged_file_is_an_error_that_says_what_to_type(placed: Placed, damage: Any, words: str) -> None:
    path = shelf_file(placed)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(KernelBuildError) as caught:
        find(placed)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert str(caught.value).endswith(f"type: {COMMAND}")


def test_a_file_that_is_not_there_is_an_error_that_names_the_kernel(placed: Placed) -> None:
    shelf_file(placed).unlink()
    with pytest.raises(KernelBuildError, match=r"samples.divide\(\) f4\[\] f4 is not in the catalogue of kernels"):
        find(placed)


def test_a_kernel_that_is_edited_in_a_clone_is_an_error(placed: Placed, tmp_path: Path) -> None:
    path = shelf_file(placed)
    shelf, compiler = unpack(path.read_bytes())
    path.write_bytes(pack({key: Compiled(c.entry, "of another source", c.spirv) for key, c in shelf.items()}, compiler))
    assert find(placed).digest == "of another source"  # an installed package is not looked at
    catalogue._shelf.cache_clear()
    catalogue._may_change.cache_clear()
    (tmp_path / "pyproject.toml").touch()
    with pytest.raises(KernelBuildError, match="has changed since the catalogue of kernels was built; type: python"):
        find(placed)


def test_files_do_not_depend_on_the_order_of_kernels() -> None:
    some = {name: Compiled(name, "digest", name.encode() * 9) for name in "abc"}
    assert pack(some, "compiler") == pack(dict(reversed(some.items())), "compiler")
    assert unpack(pack(some, "compiler")) == (some, "compiler")
    assert lzma.decompress(pack(some, "compiler").split(b"\n", 2)[2]).endswith(b"aaaaaaaaabbbbbbbbbccccccccc")


def scaled(factor: float, extra: str = "") -> Kernel:
    """Make a kernel from text, so that its source can differ."""
    text = f"@kernel('f4[]')\ndef scale(item, x):\n    x[index(0)] *= np.float32({factor}){extra}\n"
    path = Path(f"scaled-{factor}-{len(extra)}.py")
    import linecache

    linecache.cache[str(path)] = (len(text), None, text.splitlines(keepends=True), str(path))
    names = {"kernel": kernel, "np": np, "index": language.index, "__name__": "scaled"}
    exec(compile(text, str(path), "exec"), names)
    return names["scale"]  # type: ignore[return-value]


def test_the_digest_is_of_the_code_and_not_of_comments() -> None:
    assert scaled(2).digest == scaled(2, "  # twice").digest != scaled(3).digest


def stepped(step: int) -> Kernel:
    """Make a kernel that closes over a function that closes over a number."""

    @device_function
    def moved(x):
        return x + step

    @kernel("f4[]")
    def whole(item, x):
        x[0] = moved(x[0])

    return whole


def test_what_a_part_of_a_kernel_closes_over_is_in_the_key_and_its_source_in_the_digest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert stepped(2).key == stepped(2).key != stepped(3).key
    digest = stepped(2).digest
    assert stepped(2).digest == digest != stepped(3).digest
    sources = language._without_comments
    monkeypatch.setattr(language, "_without_comments", lambda code: sources(code).replace("x + step", "x - step"))
    assert stepped(2).digest != digest


def test_the_digest_is_of_what_a_kernel_closes_over_and_of_the_functions_and_numbers_it_uses() -> None:
    assert samples.times(3).digest != samples.times(4).digest
    from xpulab.kernels.kmeans import compare, lloyd

    def digest_of(module: Any) -> str:
        return str(next(each for each in module.every_kernel() if "moves" in each.key).digest)

    digest = digest_of(lloyd)
    spec = importlib.util.find_spec(lloyd.__name__)
    assert spec is not None
    assert spec.loader is not None
    for items, same in ((lloyd._ITEMS, True), (32, False)):
        fresh: Any = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(fresh)
        fresh._ITEMS = items
        assert (digest_of(fresh) == digest) is same
    summing = next(k for k in compare.every_kernel() if "summing=True" in k.key)
    assert any("before - ( after - part )" in line for line in language._meaning(summing.function))  # of moves.move


def test_a_kernel_that_uses_more_than_numbers_is_refused() -> None:
    @kernel("f4[]")
    def bad(item, x):
        x[0] = ROOT

    with pytest.raises(TypeError, match="bad uses ROOT"):
        assert bad.digest
