"""Lines per episode (`log.episodes`), and mean length and Q values in rows."""

import re

import pytest

import starling
from starling.experiment.episode_lines import EpisodeLines
from starling.experiment.run_folder.metrics import Scoreboard, read_rows
from starling.types import Episode

SMALL = ["net.torso.hidden=[16]", "stop.return=null", "env.num=2"]
DQN = [*SMALL, "algo.learning_starts=100", "algo.fragment=16", "stop.env_steps=800", "log.every=400"]
NUMBER = r"-?[\d.]+(?:e-?\d+)?"
LINE = re.compile(
    rf"Episode (?P<episode>\d+) - Step (?P<step>\d+)(?: - Epsilon (?P<epsilon>{NUMBER}))?"
    rf" - Mean Reward (?P<reward>{NUMBER}) - Mean Length (?P<length>{NUMBER}) - Mean Loss (?P<loss>{NUMBER}|-)"
    rf"(?: - Mean Q Value (?P<q>{NUMBER}|-))? - Time Delta (?P<seconds>{NUMBER})"
    r" - Time (?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)"
)


class Lines:
    """A display that records messages."""

    def __init__(self):
        self.lines = []

    def tick(self, status): ...

    def row(self, row): ...

    def message(self, line):
        self.lines.append(line)

    @property
    def episodes(self):
        return [LINE.fullmatch(line).groupdict() for line in self.lines if line.startswith("Episode ")]


def train(preset, settings, runs):
    shown = Lines()
    return starling.train(preset, settings, runs=runs, display=shown), shown


def test_line_has_the_facts_in_the_order_of_older_projects(monkeypatch):
    monkeypatch.setattr("time.strftime", lambda form: "2021-04-23T06:59:57")
    seconds = iter([0.0, 8.267])
    lines, scores = EpisodeLines(10, lambda: next(seconds)), Scoreboard()
    scores.add([Episode(0, 700.0, 250), Episode(0, 766.91, 254)])
    metrics = {"explore/epsilon": 0.9993065, "loss/q": 0.2811, "loss/q_values": 0.33712, "loss/other": 5.0}
    assert lines.line(scores, 2775, metrics) == (
        "Episode 2 - Step 2775 - Epsilon 0.9993 - Mean Reward 733.455 - Mean Length 252.0 - Mean Loss 0.2811"
        " - Mean Q Value 0.3371 - Time Delta 8.267 - Time 2021-04-23T06:59:57"
    )


@pytest.mark.parametrize("runtime", [["runtime=inline"], ["runtime=processes", "actors=2"], ["learners=2"]])
def test_a_line_follows_every_so_many_episodes(tmp_path, runtime):
    result, shown = train("dqn-cartpole", [*DQN, *runtime, "log.episodes=5", "log.every=100"], tmp_path)
    found = shown.episodes
    row = read_rows(result.folder / "metrics.jsonl")[-1]
    assert [int(each["episode"]) for each in found] == list(range(5, row["episodes"] + 1, 5))
    assert len(found) >= 3
    last = found[-1]
    assert all(last[fact] not in (None, "-") for fact in ("epsilon", "reward", "length", "loss", "q"))
    assert found[0]["loss"] == "-" or "runtime=inline" not in runtime  # there it comes before the first update
    assert f"Episode {last['episode']} - Step {last['step']}" in (result.folder / "log.txt").read_text()


def test_losses_are_those_since_the_last_row(tmp_path):
    """Rows are far apart here: the first line with a loss comes long before the first row."""
    _, shown = train("dqn-cartpole", [*DQN, "log.episodes=1", "log.every=800"], tmp_path)
    steps = [int(each["step"]) for each in shown.episodes if each["loss"] != "-"]
    assert steps[0] < 400


def test_policies_have_no_epsilon_and_no_q_value(tmp_path):
    settings = [*SMALL, "algo.rollout=32", "stop.env_steps=320", "log.episodes=2"]
    _, shown = train("ppo-cartpole", settings, tmp_path)
    assert shown.episodes[-1]["loss"] != "-"
    assert all(each["epsilon"] is None and each["q"] is None for each in shown.episodes)


def test_lines_change_nothing_and_come_only_on_request(tmp_path):
    plain, shown = train("dqn-cartpole", DQN, tmp_path / "plain")
    assert shown.episodes == []
    lined, _ = train("dqn-cartpole", [*DQN, "log.episodes=1"], tmp_path / "lined")
    one, other = (
        [{key: value for key, value in row.items() if not key.startswith("time/")} for row in read_rows(place)]
        for place in (plain.folder / "metrics.jsonl", lined.folder / "metrics.jsonl")
    )
    assert one == other


def test_counting_goes_on_after_a_resume(tmp_path):
    settings = [*DQN, "stop.env_steps=400", "checkpoint.every=400", "log.episodes=5"]
    result, shown = train("dqn-cartpole", settings, tmp_path)
    (result.folder / "config.yaml").write_text(
        (result.folder / "config.yaml").read_text().replace("env_steps: 400", "env_steps: 800")
    )
    more = Lines()
    starling.resume(result.folder, display=more)
    first, second = ([int(each["episode"]) for each in lines.episodes] for lines in (shown, more))
    assert first + second == list(range(5, 5 * (len(first) + len(second)) + 1, 5))
    assert second


@pytest.mark.parametrize("name", ["dqn", "apex", "r2d2", "ngu", "pqn", "sac"])
def test_rows_with_an_update_have_mean_q_values_and_every_row_the_mean_length(name, tmp_path):
    replay = ["algo.updates_per_step=0.05", "algo.fragment=8"]
    sequences = [*replay, "algo.learning_starts=4", "algo.burn_in=2", "algo.unroll=6", "algo.period=3"]
    small = {
        "pqn": ["algo.rollout=16", "algo.minibatches=2"],
        "r2d2": sequences,
        "ngu": [*sequences, "algo.policies=2"],
    }
    settings = ["env.id=CartPole-v1", "net.torso.hidden=[8]", "env.num=2", "stop.env_steps=400", "log.every=50"]
    result, _ = train(name, [*settings, *small.get(name, [*replay, "algo.learning_starts=64"])], tmp_path)
    rows = read_rows(result.folder / "metrics.jsonl")
    learned = [row for row in rows if any(key.startswith("loss/") for key in row)]
    assert learned
    assert all("loss/q_values" in row for row in learned)
    assert all(row["episode_length"] is not None for row in rows if row["episodes"])
    assert all("episode_length" in row for row in rows)
