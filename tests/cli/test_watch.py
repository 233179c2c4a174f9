"""`starling watch`, as a user runs it: its address, its end, and what it says where there is nothing to watch."""

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
import urllib.request

import pytest
from support.browser import Browser
from support.listening_sockets import listening_addresses
from support.report_runs import make_run, rows

COMMAND = [sys.executable, "-m", "starling", "watch"]
PATIENCE = 300.0  # seconds


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "runs", "mine")


@pytest.fixture
def watch():
    """`watch(*arguments)`: the started process, and its address."""
    processes = []

    def start(*arguments):
        command = [*COMMAND, *map(str, arguments)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        processes.append(process)
        lines = iter(process.stdout.readline, "")
        url = next(match[0] for line in lines if (match := re.search(r"http://\S+", line)))
        return process, url

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_it_listens_on_loopback_only_and_ctrl_c_ends_it_cleanly(run, watch):
    process, url = watch(run)
    ((address, port),) = listening_addresses([process.pid])
    assert address.is_loopback
    assert url.startswith(f"http://127.0.0.1:{port}/")
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        assert b"Starling watch" in answer.read()
    before = sorted(run.rglob("*"))
    process.send_signal(signal.SIGINT)
    printed, complaint = process.communicate(timeout=PATIENCE)
    assert (process.returncode, printed, complaint) == (0, "", "")
    assert sorted(run.rglob("*")) == before


def test_port_in_use_and_runs_that_are_not_there_are_one_line(run, watch, tmp_path, in_process):
    _, url = watch(run, "--port", 0)
    port = re.search(r":(\d+)/", url)[1]
    code, printed, complaint = in_process("watch", run, "--port", port, "--smooth", 0.3)
    assert (code, printed) == (2, "")
    assert complaint == (
        f"error: port {port} of 127.0.0.1 cannot be used: Address already in use; choose another with --port, or leave"
        " it out for a free one\n"
    )
    assert in_process("watch", tmp_path / "none") == (2, "", f"error: no such run: {tmp_path / 'none'}\n")
    code, _, complaint = in_process("watch", "--tui", run)
    assert code == 2
    assert complaint == "error: --tui needs a terminal that can be redrawn; starling metrics RUN prints the last rows\n"


def test_terminal_view_follows_a_run_and_ctrl_c_ends_it_cleanly(run):
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS="100", LINES="40")
        os.execv(sys.executable, [*COMMAND, "--tui", str(run)])
    try:
        _read_until(terminal, "20,000 of 120,000")
        with (run / "metrics.jsonl").open("a") as file:
            file.write('{"env_steps": 30000}\n')
        _read_until(terminal, "30,000 of 120,000")
        os.kill(pid, signal.SIGINT)
        _read_until(terminal, "\x1b[?1049l")  # back to the screen before
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        os.close(terminal)


def _read_until(terminal, text):
    seen, end = "", time.monotonic() + PATIENCE
    while text not in seen:
        assert time.monotonic() < end, seen
        if select.select([terminal], [], [], 1.0)[0]:
            seen += os.read(terminal, 65_536).decode(errors="replace")


def test_page_updates_in_a_browser_without_reloading_and_keeps_what_the_user_chose(tmp_path, watch):
    runs = [make_run(tmp_path, f"r{seed}", overrides=[f"seed={seed}"], metrics=rows(10)) for seed in range(2)]
    _, url = watch(*runs)
    with Browser() as browser:
        for width, scheme in ((1280, "dark"), (390, "light")):
            browser.view(width, 900, scheme)
            browser.open(url)
            browser.wait("return document.querySelector('#live').className.includes('good')")
            assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
        browser.run(
            "document.querySelector('input[value=time]').click();"
            "document.querySelector('.legend button').click();"
            "document.querySelector('details').open = false;"
            "window.mark = document.querySelector('summary');"
        )
        extra = [*rows(12), *rows(12, **{"mine/new": 1.0})[-1:]]
        (runs[0] / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in extra))
        browser.wait("return document.querySelector('#now').textContent.includes('12,000 of 120,000')")
        browser.wait("return document.body.textContent.includes('mine/new')")
        chosen = browser.run(
            "return [document.querySelector('summary') === window.mark, document.querySelector('details').open,"
            " document.querySelector('.legend button').ariaPressed,"
            " [...document.querySelectorAll('.plot .series')].every((part) => part.getAttribute('visibility') ==="
            " 'hidden'), [...document.querySelectorAll('[data-on-axis=steps]')].every((part) => part.hidden)]"
        )
        assert chosen == [True, False, "false", True, True]
        shutil.rmtree(runs[1])
        browser.wait("return document.querySelector('#now').textContent.includes('deleted or moved')")
        assert browser.complaints() == []


def test_page_says_so_when_the_command_has_ended(run, watch):
    process, url = watch(run)
    with Browser() as browser:
        browser.open(url)
        browser.wait("return document.querySelector('#live').className.includes('good')")
        process.send_signal(signal.SIGINT)
        process.wait()
        browser.wait("return document.querySelector('#live').textContent.startsWith('No connection')")
        assert browser.run("return document.querySelector('#now').textContent.includes('20,000 of 120,000')")
