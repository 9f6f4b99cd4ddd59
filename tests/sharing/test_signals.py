"""Tests of Ctrl-C that is postponed."""

from __future__ import annotations

import signal

import pytest

from xpulab.sharing.signals import interrupted_after, postponed


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def test_ctrl_c_is_noted_and_raises_nothing() -> None:
    with postponed() as pressed:
        assert not pressed
        press()
        assert pressed
        pressed.forget()
        assert not pressed
    with pytest.raises(KeyboardInterrupt):
        press()


def test_ctrl_c_acts_where_the_users_code_runs() -> None:
    with postponed() as pressed:
        with pytest.raises(KeyboardInterrupt), pressed.acts():
            press()
        press()
        assert pressed
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_context_that_ctrl_c_kept_open_changes_nothing_at_its_late_end() -> None:
    with postponed() as pressed:
        left_open = pressed.acts()
        left_open.__enter__()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    del left_open  # as the garbage collector ends it, with the traceback that held it
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_in_a_block_that_has_to_be_whole_is_raised_at_its_end() -> None:
    done = []

    def whole(error: bool) -> None:
        with interrupted_after():
            press()
            done.append("all of it")
            if error:
                raise ValueError("its own")

    with pytest.raises(KeyboardInterrupt):
        whole(error=False)
    with pytest.raises(ValueError, match="its own"):
        whole(error=True)
    assert done == ["all of it"] * 2
    with interrupted_after():
        done.append("without a press")
