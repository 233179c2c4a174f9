"""Runs that are watched: read again when they change, kept when they go, and served to those who know the token."""

import contextlib
import http.client
import io
import json
import shutil
import threading

import pytest
from rich.console import Console
from support.report_runs import STAMP, make_run, rows

from starling.errors import UserError
from starling.experiment.run_folder.lock import locked
from starling.tools.live import server as server_module
from starling.tools.live.live_page import LivePage
from starling.tools.live.now import now_of
from starling.tools.live.server import File, LiveServer
from starling.tools.live.terminal import draw, show, sparkline
from starling.tools.live.watched import EVERY, View, Watched
from starling.tools.report.runs import read_run

GIF = b"GIF89a" + bytes(range(200))


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def later(self, watched):
        """Return the view after the least time between two looks."""
        self.now += EVERY
        return watched.view()


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "runs", "mine")


@pytest.fixture
def clock():
    return Clock()


def append(run, count, first):
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows(first + count)[first:])


def test_new_rows_are_read_and_nothing_is_without_them(run, clock):
    watched = Watched([run], clock)
    first = watched.view()
    assert [read.table.env_steps for read in first.runs] == [20_000]
    assert clock.later(watched) is first
    append(run, 2, 20)
    assert watched.view() is first, "it looks once per second"
    second = clock.later(watched)
    assert (second.runs[0].table.env_steps, second.version) == (22_000, first.version + 1)


def test_reading_takes_at_most_a_tenth_of_the_time(run, monkeypatch):
    clock = Clock()

    def slow(path, name):
        clock.now += 3.0
        return read_run(path, name)

    monkeypatch.setattr("starling.tools.live.watched.read_run", slow)
    watched = Watched([run], clock)
    first = watched.view()
    append(run, 1, 20)
    clock.now += 29.0
    assert watched.view() is first
    clock.now += 1.0
    assert watched.view() is not first


def test_a_run_that_starts_and_ends_changes_its_state(run, clock):
    watched = Watched([run], clock)
    assert watched.view().runs[0].status.startswith("no end in its log")
    with locked(run, print):
        assert clock.later(watched).runs[0].status == "in progress"
    with (run / "log.txt").open("a") as file:
        file.write(f"{STAMP} finished: done, 20,000 env steps, no score\n")
    assert clock.later(watched).runs[0].status == "finished: done"


def test_a_run_without_rows_is_waited_for(tmp_path, clock):
    run = make_run(tmp_path, "new")
    content = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").unlink()
    watched = Watched([run, tmp_path / "later"], clock)
    assert [name for name, _ in watched.view().problems] == ["new", "later"]
    (run / "metrics.jsonl").write_text(content)
    make_run(tmp_path, "later")
    view = clock.later(watched)
    assert ([read.name for read in view.runs], view.problems) == (["new", "later"], ())


def test_a_run_that_is_deleted_stays_as_it_was_until_it_is_back(run, clock):
    watched = Watched([run], clock)
    table = watched.view().runs[0].table
    away = run.with_name("away")
    run.rename(away)
    gone = clock.later(watched)
    assert gone.runs[0].table is table
    assert gone.runs[0].status == "deleted or moved while it was watched"
    assert gone.problems == (("mine", f"no such run: {run}"),)
    away.rename(run)
    assert clock.later(watched).problems == ()


def test_what_is_no_run_is_one_line_each(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=f"empty is not a run: it has no config.yaml\nno such run: {tmp_path}/none"):
        Watched([tmp_path / "empty", tmp_path / "none"])


def test_numbers_of_a_run_in_progress(run):
    with locked(run, print):
        now = now_of(read_run(run))
    assert (now.state, now.share) == ("in progress", 20_000 / 120_000)
    assert now.about == "CartPole-v1 · ppo · seed 0"
    facts = dict(now.facts)
    assert facts["Env steps"] == "20,000 of 120,000"
    assert facts["Time left"] == "3 min 20 s"  # 100,000 steps at 500 per second
    assert (facts["Return"], facts["Q loss"], facts["Lag (updates)"]) == ("20", "0.05", "5")
    assert now.limit.startswith("one process: 20% learning")
    assert now.returns == tuple(range(1, 21))
    assert "Time left" not in dict(now_of(read_run(run)).facts)


@pytest.mark.parametrize(
    ("limits", "share", "left"),
    [
        ("{env_steps: 120000, episodes: 200}", 60 / 200, "1 min 33 s"),
        ("{env_steps: 120000, minutes: 2.0}", 40 / 120, "1 min 20 s"),
        ("{env_steps: 40000, minutes: 2.0}", 0.5, "40 s"),
    ],
)
def test_share_and_time_left_are_those_of_the_nearest_limit(run, limits, share, left):
    (run / "config.yaml").write_text(f"env: {{id: x}}\nalgo: {{name: y}}\nstop: {limits}\n")
    with locked(run, print):
        now = now_of(read_run(run))
    assert (now.share, dict(now.facts)["Time left"]) == (share, left)


@pytest.mark.parametrize("steps", ["many", -1, None, 0.5, True])
def test_a_limit_that_is_no_count_is_no_limit(run, steps):
    (run / "config.yaml").write_text(f"env: {{id: x}}\nalgo: {{name: y}}\nstop: {{env_steps: {json.dumps(steps)}}}\n")
    now = now_of(read_run(run))
    assert now.share is None
    assert dict(now.facts)["Env steps"] == "20,000"


def test_terminal_has_the_same_numbers_as_the_page(run):
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(draw(View((read_run(run, "a\x1b[2J"),), (("b", "is\x07gone"),)), 100))
    text = console.export_text()
    assert all(title in text and value in text for title, value in now_of(read_run(run)).facts)
    assert "a\\x1b[2J" in text
    assert "b: is\\x07gone" in text


def test_terminal_view_without_a_terminal_is_refused(run):
    with pytest.raises(UserError, match="--tui needs a terminal"):
        show(Watched([run]), Console(file=io.StringIO()))


def test_sparkline():
    assert sparkline([0, 1, 3.5, 7, float("nan")]) == "▁▂▅█ "  # 3.5 rounds to the even 4
    assert sparkline([2, 2]) == "▄▄"
    assert sparkline([float("nan")]) == ""


@contextlib.contextmanager
def serving(find):
    with LiveServer(find) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def served():
    with serving({"": File(b"page", "text/html"), "media/a": File(GIF, "image/gif")}.get) as server:
        yield server


def ask(server, path, method="GET", **headers):
    """Return status, headers, and content of an answer."""
    connection = http.client.HTTPConnection(*server.server_address, timeout=60)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): text for name, text in headers.items()})
        answer = connection.getresponse()
        return answer.status, dict(answer.headers), answer.read()
    finally:
        connection.close()


def test_only_those_who_know_the_token_get_the_page(served):
    token = served.token
    assert len(token) >= 32
    assert served.url == f"http://127.0.0.1:{served.server_address[1]}/{token}/"
    assert ask(served, f"/{token}/")[0::2] == (200, b"page")
    for path in ("/", "//", "", f"/{token[:-1]}/", f"/{token}x/", "/%e9/", f"/?{token}", "/media/a"):
        status, _, content = ask(served, path or "*")
        assert status == 404, path
        assert token.encode() not in content
    assert ask(served, f"/{token}/../../etc/passwd")[0] == 404
    assert ask(served, f"/{token}")[1]["Location"] == f"/{token}/"


def test_another_website_whose_name_leads_here_is_refused(served):
    path = f"/{served.token}/"
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost:x", "[::1]", ""):
        assert ask(served, path, Host=host)[0] == 421, host
    for host in ("localhost", "LOCALHOST:9000", "127.0.0.1:1"):
        assert ask(served, path, Host=host)[0] == 200, host


def test_answers_may_not_be_framed_kept_sniffed_or_referred(served):
    for path in ("/", f"/{served.token}/"):
        headers = ask(served, path)[1]
        assert headers["Content-Security-Policy"] == "frame-ancestors 'none'"
        assert headers["Cache-Control"] == "no-store"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"


def test_nothing_can_be_written(served):
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert ask(served, f"/{served.token}/", method)[0] == 501


def test_a_page_that_has_not_changed_is_not_sent_again_and_a_video_in_parts(served):
    path = f"/{served.token}/"
    tag = ask(served, path)[1]["ETag"]
    assert ask(served, path, If_None_Match=tag)[0::2] == (304, b"")
    assert ask(served, path, "HEAD")[0::2] == (200, b"")
    video = f"{path}media/a"
    status, headers, content = ask(served, video, Range="bytes=6-9")
    assert (status, content, headers["Content-Range"]) == (206, GIF[6:10], f"bytes 6-9/{len(GIF)}")
    assert ask(served, video, Range="bytes=200-")[2] == GIF[200:]
    for odd in ("bytes=9-6", "bytes=-5", "bytes=999999-", "lines=1-2", "bytes=1-2,4-5"):
        assert ask(served, video, Range=odd)[0::2] == (200, GIF), odd


def test_too_many_connections_are_closed_and_the_others_served(served, monkeypatch):
    idle = [
        http.client.HTTPConnection(*served.server_address, timeout=60) for _ in range(server_module.MOST_CONNECTIONS)
    ]
    try:
        for connection in idle:
            connection.request("GET", f"/{served.token}/")
            assert connection.getresponse().read() == b"page"
        with pytest.raises((http.client.BadStatusLine, ConnectionError)):
            ask(served, f"/{served.token}/")
        idle[0].request("GET", f"/{served.token}/")
        assert idle[0].getresponse().status == 200
    finally:
        for connection in idle:
            connection.close()


def test_a_request_that_fails_is_one_line_and_the_server_goes_on(capsys):
    def find(path):
        raise ValueError("line\n\x1b[2J")

    with serving(find) as server:
        with pytest.raises((http.client.BadStatusLine, ConnectionError)):
            ask(server, f"/{server.token}/")
        assert ask(server, "/")[0] == 404
    complaint = capsys.readouterr().err
    assert complaint.startswith("warning: a request failed: ValueError")
    assert complaint.count("\n") == 1


def test_the_port_of_another_server_is_one_line(served):
    port = served.server_address[1]
    with pytest.raises(UserError, match=f"port {port} of 127.0.0.1 cannot be used: .*choose another with --port"):
        LiveServer(lambda path: None, port)


def test_page_serves_its_videos_by_their_own_address_and_follows_the_run(run, clock):
    (run / "videos").mkdir()
    (run / "videos" / "a.gif").write_bytes(GIF)
    page = LivePage(Watched([run], clock), smooth=0.5)
    html = page.find("").content.decode()
    assert 'value="0.5"' in html
    assert "20,000 of 120,000" in html
    (path,) = [part for part in html.split('"') if part.startswith("media/")]
    assert page.find(path).content == GIF
    assert page.find(path).mime == "image/gif"
    assert page.find("media/other") is None
    append(run, 1, 20)
    clock.now += EVERY
    assert "21,000 of 120,000" in page.find("").content.decode()
    shutil.rmtree(run)
    clock.now += EVERY
    html = page.find("").content.decode()
    assert "deleted or moved while it was watched" in html
    assert page.find(path).content == GIF


def test_page_of_runs_without_rows(tmp_path):
    run = make_run(tmp_path, "new", metrics=[])
    html = LivePage(Watched([run])).find("").content.decode()
    assert "There are no rows of metrics yet" in html
    assert f"{run} has no rows of metrics yet" in html


def test_page_escapes_what_a_run_says(tmp_path):
    evil = "<img src=x onerror=alert(1)>"
    more = {"time/bottleneck": evil}
    run = make_run(tmp_path, "mine", metrics=rows(3, **more), log=[f"finished: {evil}, 1 env steps, no score"])
    html = LivePage(Watched([run.rename(tmp_path / evil)])).find("").content.decode()
    assert evil not in html
    assert html.count("&lt;img src=x onerror") >= 4


def test_policy_of_the_page_allows_its_own_script_and_address_only(run):
    html = LivePage(Watched([run])).find("").content.decode()
    (policy,) = [part for part in html.split('"') if part.startswith("default-src")]
    policy = policy.replace("&#x27;", "'")
    assert policy.count("'sha256-") == 2
    for part in ("default-src 'none'", "connect-src 'self'", "media-src 'self'", "form-action 'none'"):
        assert part in policy
    assert "unsafe" not in policy
