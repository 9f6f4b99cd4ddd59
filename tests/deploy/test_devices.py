"""The devices and the engines that use them, from answers of the probe."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from reports import EVIL, Document

from xpulab.deploy.devices import Devices, devices
from xpulab.deploy.plan.plan import plan
from xpulab.deploy.plan.probe import Probe

MACHINES = Path(__file__).parent / "plan" / "probes"


def machine(name: str) -> Probe:
    return Probe.from_dict(json.loads((MACHINES / f"{name}.json").read_text()))


def uses(name: str, n: int | None = None) -> dict[str, str]:
    """Return selector -> the engines that use it."""
    found = machine(name)
    answer = Devices(found, plan(found, n), True)
    return {device.selector: answer.used_by(device) for device in found.devices}


def test_every_device_has_its_engines_or_the_reason_why_it_is_idle() -> None:
    used = uses("laptop", 2)
    assert used["level_zero:0"] == "rank 0-1"
    idle = [text for selector, text in used.items() if selector != "level_zero:0"]
    assert idle
    assert all(text.startswith("idle: ") and len(text) > len("idle: ") for text in idle)


def test_tiles_can_be_distinguished() -> None:
    used = uses("two_tile_gpus_composite", 3)
    assert used["level_zero:0"] == "rank 0 on tile 0; rank 1 on tile 1"
    assert used["level_zero:1"] == "rank 2 on tile 0; tile 1 idle: only 3 engines"


def test_the_same_in_html_and_in_text() -> None:
    found = machine("laptop")
    for answer, words in (
        (Devices(found, plan(found), True), "The column 'used by' shows the running engines."),
        (Devices(found, plan(found), False), "No cluster is running"),
        (Devices(found, None, False), "No engine can run on these devices; type: %xpu_cluster doctor"),
    ):
        for text in (str(answer), Document(answer._repr_html_()).text):
            assert words in text
            assert found.host in text
            assert all(device.name in text for device in found.devices)
    assert json.loads(json.dumps(answer.to_dict()))["running"] is False


def test_everything_is_escaped() -> None:
    found = machine("laptop")
    evil = replace(
        found, host=EVIL, errors=(EVIL,), devices=tuple(replace(d, name=EVIL, driver=EVIL) for d in found.devices)
    )
    answer = Devices(evil, plan(evil), False)
    assert "<script" not in answer._repr_html_()
    assert "\x1b" not in answer._repr_html_() + str(answer)


def test_no_device_is_no_error_here(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = replace(machine("laptop"), devices=())
    monkeypatch.setattr("xpulab.deploy.plan.probe.probe", lambda: nothing)
    assert devices().plan is None
    assert "type: %xpu_cluster doctor" in str(devices())
