"""The page of a report: self-contained, escaped everywhere, the same content for eyes and screen readers."""

import base64
import hashlib
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from support.report_runs import make_run, rows

from starling.tools.report.groups import group_runs
from starling.tools.report.markup import Markup, join, tag
from starling.tools.report.page import build_page
from starling.tools.report.runs import read_runs

EVIL = "\"'><img src=x onerror=alert(1)></script></style><script>alert(1)</script>&amp;"
TAGS = {
    *("html", "head", "meta", "title", "style", "script", "body", "header", "main", "footer", "nav", "section", "div"),
    *(
        "h1",
        "h2",
        "h3",
        "h4",
        "p",
        "a",
        "b",
        "span",
        "code",
        "pre",
        "ul",
        "li",
        "details",
        "summary",
        "figure",
        "figcaption",
    ),
    *(
        "table",
        "caption",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "fieldset",
        "legend",
        "label",
        "input",
        "output",
        "button",
    ),
    *("svg", "g", "path", "line", "rect", "text", "video", "img"),
}


class Page(HTMLParser):
    """Elements of a page with their attributes and texts; fails if they are not nested."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.texts = [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, name, attributes):
        self.elements.append((name, dict(attributes)))
        if name not in ("meta", "input", "img"):
            self.open.append(name)

    def handle_startendtag(self, name, attributes):
        self.elements.append((name, dict(attributes)))

    def handle_endtag(self, name):
        assert self.open.pop() == name

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("script", "style"):
            self.texts.append(data)

    def all(self, name, **having):
        found = [attributes for tag, attributes in self.elements if tag == name]
        return [a for a in found if all(a.get(key.rstrip("_")) == value for key, value in having.items())]

    @property
    def text(self):
        return " ".join(self.texts)


def page_of(folders, missing=(), **options):
    return build_page(group_runs(read_runs(folders)[0]), missing, **options)


def check_harmless(html):
    """The page runs no script but its own, and loads nothing."""
    page = Page(html)
    assert {name for name, _ in page.elements} <= TAGS
    names = {key for _, attributes in page.elements for key in attributes}
    assert not [name for name in names if name.startswith("on") or name in ("style", "srcset", "action", "formaction")]
    addresses = [a[key] for _, a in page.elements for key in ("src", "href", "xlink:href", "data") if key in a]
    assert all(address.startswith(("#", "data:image/", "data:video/")) for address in addresses)
    assert [len(page.all(name)) for name in ("script", "style")] == [1, 1]
    (policy,) = (meta["content"] for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy")
    for name, directive in (("script", "script-src"), ("style", "style-src")):
        (content,) = re.findall(rf"<{name}>(.*?)</{name}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none';")
    return page


@pytest.fixture(scope="module")
def two_algorithms(tmp_path_factory):
    """Three seeds each of two algorithms, one of them with an evaluation; and a run of another env."""
    root = tmp_path_factory.mktemp("two")
    folders = [
        make_run(
            root, f"{algo}-{seed}", f"{algo}-cartpole", [f"seed={seed}"], rows(start=seed, gain=1 + (algo == "ppo"))
        )
        for algo in ("ppo", "dqn")
        for seed in range(3)
    ]
    return [*folders, make_run(root, "acro", overrides=["env.id=Acrobot-v1"])]


def test_text_and_attributes_are_escaped_and_markup_is_not():
    assert tag("p", "a<b", Markup("<b>c</b>"), None, ["&", 3], title='"', hidden=False, open=True) == (
        '<p title="&quot;" open>a&lt;b<b>c</b>&amp;3</p>'
    )
    assert tag("path", class_="x", aria_label="'") == '<path class="x" aria-label="&#x27;"/>'
    assert join("\x1b[2J\u202e") == "\\x1b[2J\\u202e"


def test_page_has_a_band_per_algorithm_and_a_section_per_env(two_algorithms):
    html = page_of(two_algorithms)
    page = check_harmless(html)
    assert [text for text in page.texts if text in ("CartPole-v1", "Acrobot-v1")].count("CartPole-v1") >= 2
    sections = re.findall(r"<section.*?</section>", html, re.DOTALL)
    assert len(sections) == 2
    assert "Acrobot" not in sections[0]
    (chart,) = re.findall(r"<figure><figcaption><h4>Return</h4>.*?</figure>", sections[0], re.DOTALL)
    assert chart.count('class="band"') == 4  # two algorithms over steps, and over time
    assert chart.count('class="line run thin"') == 12
    assert re.findall(r'data-name="(.*?)"', chart)[:2] == ["ppo, IQM of 3 seeds", "dqn, IQM of 3 seeds"]
    assert 'data-on-axis="time" hidden' in chart
    assert "Runs: return is" in page.text


def test_page_says_in_words_what_a_chart_shows(two_algorithms):
    page = Page(page_of(two_algorithms))
    plots = page.all("svg", class_="plot")
    assert plots
    assert all(plot["aria-label"] and plot["role"] == "img" and plot["tabindex"] == "0" for plot in plots)
    assert plots[0]["aria-label"] == (
        "Return: ppo (IQM of 3 seeds) from 3 to 41; dqn (IQM of 3 seeds) from 2 to 21. Over env steps."
    )
    assert all(button["aria-pressed"] == "true" for button in page.all("button"))
    assert page.all("html")[0]["lang"] == "en"


def test_speed_is_in_steps_and_in_frames(tmp_path):
    path = make_run(tmp_path, "pong", "dqn-atari", ["env.id=ALE/Pong-v5"], rows(skip=4))
    html = page_of([path])
    assert "<h4>Env steps per second</h4>" in html
    assert "<h4>Frames per second</h4>" in html
    row = re.findall(r"<tr><th scope=\"row\">pong</th>(.*?)</tr>", html)[0]
    assert re.findall(r"<td.*?>(.*?)</td>", row)[2:-1] == [
        "20,000", "80,000", "40 s", "20", "-", "200", "500", "2,000", "0",
    ]  # fmt: skip
    assert "Scorecard: ALE/Pong-v5" in html


def test_everything_of_a_run_is_escaped(tmp_path):
    """A stranger's folder name, settings, keys, texts, log, and names of videos."""
    said = {
        "time/bottleneck": f"learner busy 9%: {EVIL}",
        "warnings": EVIL,
        f"loss/{EVIL}": 1.0,
        f"eval/arm/0{EVIL}/return": 1.0,
    }
    path = make_run(
        tmp_path, "plain", metrics=rows(**said), log=[f"run: {EVIL}", f"warning: {EVIL}", f"finished: {EVIL}"]
    )
    (path / "videos").mkdir()
    (path / "videos" / f"{EVIL.replace('/', '_')}.gif").write_bytes(b"GIF89a" + b"\0" * 20)
    (path / "videos" / "bad.mp4").write_bytes(b"<html>")
    config = (path / "config.yaml").read_text()
    quoted = "'" + EVIL.replace("'", "''") + "'"
    config = config.replace("id: CartPole-v1", f"id: {quoted}").replace("activation: tanh", f"activation: {quoted}")
    assert config.count("onerror") == 2
    (path / "config.yaml").write_text(config)
    evil = path.rename(tmp_path / EVIL.replace("/", "_"))
    html = page_of([evil], missing=[EVIL])
    page = check_harmless(html)
    assert EVIL in page.text
    assert [image["alt"] for image in page.all("img")] == [f"Recording of {evil.name}: videos/{evil.name}.gif"]
    assert "videos/bad.mp4: neither MP4, WebM, GIF, nor PNG" in page.text


def test_colors_repeat_with_other_dashes_for_many_series(tmp_path):
    folders = [
        make_run(tmp_path, f"r{i}", overrides=[f"algo.gae_lambda=0.{i + 10}"], metrics=rows(3)) for i in range(10)
    ]
    page = Page(page_of(folders))
    groups = [a["class"] for a in page.all("g") if a.get("class", "").startswith("series")]
    assert len({*groups}) == 10


def test_arms_of_a_bandit_and_limits_are_drawn(tmp_path):
    arms = {f"eval/arm/{arm}/{what}": arm / 3 for arm in range(3) for what in ("return", "share")}
    html = page_of([make_run(tmp_path, "a", metrics=rows(**arms))])
    check_harmless(html)
    assert "Policies of the bandit" in html
    assert "<title>policy 2: 0.6667</title>" in html
    assert 'class="limit actors"' in html
    assert "actors 100%" in html


def test_values_at_the_limits_are_drawn(tmp_path):
    """Rows allow numbers up to 2^200, and everything may be constant or a single point."""
    huge = rows(**{"loss/a": 2.0**199, "loss/b": -(2.0**199), "loss/c": 0, "loss/d": 1e-300})
    huge[3] |= {"loss/e": 3.0, "loss/a": -(2.0**199)}
    html = page_of([make_run(tmp_path, "a", metrics=huge)])
    check_harmless(html)
    assert "nan" not in re.sub(r"<script>.*</script>", "", html, flags=re.DOTALL).lower().replace("finance", "")
    one = page_of([make_run(tmp_path, "b", metrics=[{"env_steps": 0, "return": 1.0}])])
    check_harmless(one)


def test_many_keys_are_named_and_not_drawn(tmp_path):
    more = {f"k{i}": float(i) for i in range(300)}
    html = page_of([make_run(tmp_path, "a", metrics=rows(2, **more))])
    assert "Not drawn: k" in html
    assert html.count('class="plot"') < 2 * 130


def test_two_runs_with_one_seed_are_not_two_samples_and_the_page_says_so(tmp_path):
    page = Page(page_of([make_run(tmp_path, name) for name in ("a", "b")]))
    assert "Not in any band, since another run has the same seed: b." in page.text


USE = """
<script>
const press = (key) => plot.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true}));
const plot = document.querySelector(".plot");
press("End"); press("ArrowLeft");
document.querySelectorAll(".legend button")[1].click();
document.querySelector("input[value=time]").click();
</script>
</html>"""
"""What a user does: read values at a cursor, hide the second series, and change the x-axis."""


@pytest.fixture
def in_browser(tmp_path):
    """`in_browser(html)`: the page after its script has run in Chromium, and what the browser has logged."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no chromium")

    def run(html):
        (tmp_path / "page.html").write_text(html)
        command = [
            *(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
            *(
                "--no-first-run",
                "--disable-component-update",
                "--disable-sync",
                "--enable-logging=stderr",
                "--dump-dom",
            ),
            *(f"--user-data-dir={tmp_path / 'profile'}", (tmp_path / "page.html").as_uri()),
        ]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout, ended.stderr

    return run


def test_script_runs_under_the_policy_of_the_page(two_algorithms, in_browser):
    """It shows the controls, and smooths as the option says."""
    html, logged = in_browser(page_of(two_algorithms, smooth=0.9))
    (controls,) = re.findall(r'<div class="controls"[^>]*>', html)
    assert "hidden" not in controls
    middle = r'class="line middle" d="([^"]*)" data-name="dqn'
    plain, smoothed = (re.findall(middle, text) for text in (page_of(two_algorithms), html))
    assert len(plain) == len(smoothed)
    assert plain[0] != smoothed[0]
    assert "CONSOLE" not in logged


def test_policy_of_the_page_stops_any_other_script(two_algorithms, in_browser):
    html, logged = in_browser(page_of(two_algorithms).replace("</html>", USE))
    assert "Content Security Policy" in logged
    assert not re.findall(r'<button[^>]*aria-pressed="false"', html)


def test_values_are_read_series_hidden_and_axes_changed(two_algorithms, in_browser):
    page = page_of(two_algorithms).replace("</html>", USE)
    html, logged = in_browser(re.sub(r'<meta http-equiv="Content-Security-Policy".*?/>', "", page))
    assert "CONSOLE" not in logged
    (chart,) = re.findall(
        r"<figure><figcaption><h4>Return</h4>.*?</figure>", html.partition("</section>")[0], re.DOTALL
    )
    (readout,) = re.findall(r"<output.*?>(.*?)</output>", chart, re.DOTALL)
    steps, ppo, dqn = re.findall(r"<span.*?>(.*?)</span>", readout)
    assert re.fullmatch(r"19\.\d+k steps", steps)
    at = float(steps.removesuffix("k steps"))
    for told, label, value in ((ppo, "ppo", 2 * at + 1), (dqn, "dqn", at + 1)):
        name, read = re.fullmatch(r"(\w+), IQM of 3 seeds: <i>(.*)</i>", told).groups()
        assert (name, float(read)) == (label, pytest.approx(value, abs=0.15))
    assert re.findall(r'data-series="(\d)" visibility="hidden"', chart) == ["1", "1"]  # over steps, and over time
    assert re.findall(r'data-on-axis="(\w+)"( hidden="")?', chart) == [("steps", ' hidden=""'), ("time", "")]
