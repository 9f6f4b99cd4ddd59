"""Mailboxes: replies of any length from several ranks, to clients that read, that wait, and that have ended."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from waiting import until

from xpulab.sharing.bell.mailbox import Mailbox, Post


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(0, 20_000)), max_size=12))
def test_replies_of_any_length_are_put_together(tmp_path: Path, sent: list[tuple[int, int, int]]) -> None:
    """Each is a task, a rank and the bytes of its reply; task 3 is not expected."""
    mailbox = Mailbox(tmp_path)
    right: dict[int, dict[int, bytes]] = {1: {}, 2: {}}
    for task in right:
        mailbox.expect(task)
    posts = [Post(rank) for rank in range(4)]
    for task, rank, length in sent:
        if rank not in right.get(task, {}):  # a rank replies once
            reply = os.urandom(length)
            posts[rank].send(mailbox.path, os.getpid(), task, reply)
            right.setdefault(task, {})[rank] = reply
    for task in (1, 2):
        assert {rank: bytes(reply) for rank, reply in mailbox.replies(task).items()} == right[task]
        mailbox.forget(task)
        assert mailbox.replies(task) == {}
    for post in posts:
        post.close()
    mailbox.close()
    assert not os.path.exists(mailbox.path)


def test_ranks_that_write_at_once_do_not_mix_their_parts(tmp_path: Path) -> None:
    mailbox = Mailbox(tmp_path)
    mailbox.expect(1)
    replies = {rank: os.urandom(300_000 + rank) for rank in range(4)}
    writers = [
        threading.Thread(target=Post(rank).send, args=(mailbox.path, os.getpid(), 1, reply))
        for rank, reply in replies.items()
    ]
    for writer in writers:
        writer.start()
    until(lambda: len(mailbox.replies(1)) == 4)
    assert {rank: bytes(reply) for rank, reply in mailbox.replies(1).items()} == replies
    for writer in writers:
        writer.join()
    mailbox.close()


def test_a_rank_does_not_wait_for_a_client_that_does_not_read(tmp_path: Path) -> None:
    mailbox = Mailbox(tmp_path)
    mailbox.expect(1)
    reply = os.urandom(5_000_000)  # more than a pipe holds
    Post(2).send(mailbox.path, os.getpid(), 1, reply)
    assert mailbox.replies(1) == {} or len(mailbox.replies(1)) == 1
    until(lambda: len(mailbox.replies(1)) == 1)
    assert bytes(mailbox.replies(1)[2]) == reply
    mailbox.close()


@pytest.mark.parametrize("when", ["before", "while it sends"])
def test_nothing_waits_for_a_process_that_was_killed_and_the_next_removes_its_mailbox(
    tmp_path: Path, when: str
) -> None:
    opened = os.listdir("/proc/self/fd")
    code = (
        "import sys, time, pathlib\nfrom xpulab.sharing.bell.mailbox import Mailbox\n"
        "mailbox = Mailbox(pathlib.Path(sys.argv[1])); print(mailbox.path, flush=True)\n"
        "time.sleep(100)"
    )
    client = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert client.stdout is not None
    path = client.stdout.readline().strip()
    post, before = Post(0), threading.active_count()
    if when == "before":
        client.kill()
        client.communicate()
    post.send(path, client.pid, 1, bytes(5_000_000))
    if when != "before":
        assert threading.active_count() == before + 1
        client.kill()
        client.communicate()
    until(lambda: threading.active_count() == before)
    post.send(path, client.pid, 2, b"more")
    assert os.listdir("/proc/self/fd") == opened
    mailbox = Mailbox(tmp_path)
    assert os.listdir(tmp_path) == [os.path.basename(mailbox.path)]
    mailbox.close()


def test_a_child_that_was_forked_leaves_the_mailbox_to_its_parent(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, sys\nfrom xpulab.sharing.bell.mailbox import Mailbox\n"
        "mailbox = Mailbox(pathlib.Path(sys.argv[1]))\n"
        "if (child := os.fork()) == 0: sys.exit(0)\n"
        "os.waitpid(child, 0)\n"
        "print(os.path.exists(mailbox.path)); mailbox.close(); print(os.path.exists(mailbox.path))"
    )
    said = subprocess.run([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True, check=True)
    assert said.stdout.split() == ["True", "False"]


def test_a_wait_ends_when_something_comes(tmp_path: Path) -> None:
    mailbox = Mailbox(tmp_path)
    mailbox.expect(7)
    begun = time.monotonic()
    mailbox.wait(0.05)
    assert time.monotonic() - begun >= 0.04
    assert mailbox.replies(7) == {}
    threading.Timer(0.05, Post(0).send, (mailbox.path, os.getpid(), 7, b"come")).start()
    mailbox.wait(120)
    assert bytes(mailbox.replies(7)[0]) == b"come"
    mailbox.close()


def test_a_rank_keeps_few_pipes_open(tmp_path: Path) -> None:
    mailboxes = [Mailbox(tmp_path) for _ in range(70)]
    post, before = Post(0), len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        for number, mailbox in enumerate(mailboxes):
            mailbox.expect(number)
            post.send(mailbox.path, os.getpid(), number, b"%d" % number)
            assert bytes(mailbox.replies(number)[0]) == b"%d" % number
            mailbox.forget(number)
    assert len(os.listdir("/proc/self/fd")) == before + 64
    post.close()
    assert len(os.listdir("/proc/self/fd")) == before
    for mailbox in mailboxes:
        mailbox.close()
