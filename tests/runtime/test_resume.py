"""A run goes on after its end, with the same processes, with others, or with none."""

import pytest

import starling
from starling.config.load import load
from starling.runs.metrics import read_rows
from starling.training import branch

SMALL = [
    "env.id=toy/identity",
    "env.num=4",
    "net.torso.hidden=[16]",
    "stop.env_steps=1500",
    "stop.return=null",
    "checkpoint.every=500",
    "log.every=250",
]
DQN = [*SMALL, "algo.learning_starts=100", "algo.fragment=4"]
IMPALA = [*SMALL, "algo.unroll=5", "algo.batch=4"]
PROCESSES = ["runtime=processes", "actors=2"]


@pytest.mark.parametrize(("preset", "settings"), [("dqn-cartpole", DQN), ("impala-cartpole", IMPALA)])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (PROCESSES, []),
        (PROCESSES, ["inference=central"]),
        (PROCESSES, ["actors=4"]),
        (PROCESSES, ["runtime=inline", "actors=null"]),
        ([], ["runtime=processes"]),
        (["actors=2"], ["actors=1"]),
    ],
    ids=" ".join,
)
def test_a_run_goes_on_wherever_it_ran_before(tmp_path, preset, settings, before, after):
    first = starling.train(preset, [*settings, *before, "run=first"], runs=tmp_path)
    assert first.env_steps >= 1500
    config = load(str(first.folder / "config.yaml"), ["stop.env_steps=3000", "run=second", *after])
    second = branch(first.folder, config, tmp_path, starling.api.Quiet())
    rows = read_rows(second.folder / "metrics.jsonl")
    assert second.env_steps >= 3000
    assert second.updates > first.updates
    steps = [row["env_steps"] for row in rows]
    assert steps == sorted(steps)
    last = rows[-1]
    table = "replay" if preset == "dqn-cartpole" else "unrolls"
    assert last[f"store/{table}/duplicate"] == 0, "a new life is never taken for an old one"
    if preset == "dqn-cartpole":
        assert last["store/replay/size"] > 2500, "what was in the replay is still there"


def test_resuming_goes_on_in_the_same_folder(tmp_path):
    first = starling.train("impala-cartpole", [*IMPALA, *PROCESSES, "run=a"], runs=tmp_path)
    again = starling.resume(first.folder)
    assert again.env_steps >= first.env_steps
    assert again.folder == first.folder
