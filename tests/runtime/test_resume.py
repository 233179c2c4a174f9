"""A finished run continues with the same processes and learners, with others, or in one process."""

import shutil

import numpy as np
import pytest

import starling
from starling.config.load import load
from starling.experiment.branch import check_branch
from starling.experiment.run_folder.folder import RunFolder
from starling.experiment.run_folder.metrics import read_rows
from starling.experiment.train import branch
from starling.launch.plan import RunPlan
from starling.tools.verify import UNDER_WAY, Counters

SMALL = [
    *["env.id=toy/identity", "env.num=4", "net.torso.hidden=[8]", "stop.env_steps=800", "stop.return=null"],
    *["checkpoint.every=400", "log.every=200"],
]
DQN = ["algo.learning_starts=100", "algo.fragment=4", "algo.batch=16", "algo.prioritized.alpha=0.6"]
AGENTS = {
    "dqn": ("dqn-cartpole", [*SMALL, *DQN, "algo.updates_per_step=0.25"]),
    "impala": ("impala-cartpole", [*SMALL, "algo.unroll=5", "algo.batch=4"]),
}
BEFORE = {
    "inline": [],
    "two groups": ["actors=2"],
    "processes": ["runtime=processes", "actors=2"],
    "two learners": ["learners=2", "actors=2"],
}
INLINE = ["learners=1", "runtime=inline", "actors=null"]
ONE = ["learners=1", "runtime=processes"]
CHANGES = [
    *[("processes", change) for change in ([], ["inference=central"], ["actors=4"], INLINE, ["learners=2"])],
    *[("two learners", change) for change in (["actors=4"], INLINE, ONE)],
    *[("inline", ["runtime=processes"]), ("two groups", ["actors=1"])],
]
QUEUED = [("processes", ["inference=central"]), ("processes", ["learners=2"]), ("two learners", ONE)]
"""Changes tested with a queue of fragments, which checkpoints do not contain."""
QUICK = [("processes", INLINE), ("processes", ["learners=2"]), ("inline", ["runtime=processes"])]
CASES = [
    *(pytest.param("dqn", *change, marks=[] if change in QUICK else [pytest.mark.slow]) for change in CHANGES),
    *(pytest.param("impala", *change, marks=pytest.mark.slow) for change in QUEUED),
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """`finished(agent, before)`: a run that has ended, trained on first use."""
    made = {}

    def run(agent, before):
        if (agent, before) not in made:
            preset, settings = AGENTS[agent]
            runs = tmp_path_factory.mktemp("runs")
            made[agent, before] = starling.train(preset, [*settings, *BEFORE[before], "run=first"], runs=runs)
        return made[agent, before]

    return run


@pytest.mark.parametrize(
    ("agent", "before", "after"), CASES, ids=lambda part: " ".join(part) if type(part) is list else part
)
def test_run_continues_under_another_topology(finished, tmp_path, agent, before, after):
    check_continued(finished(agent, before), tmp_path, after)


@pytest.mark.slow
def test_four_learners_continue_with_the_replay_of_two(finished, tmp_path):
    check_continued(finished("dqn", "two learners"), tmp_path, ["learners=4", "actors=4"])


def test_fragments_that_cannot_be_split_between_two_learners_are_a_clear_error():
    run_plans = [
        RunPlan.from_config(load("impala-clear-cartpole", [*after, "actors=2"])) for after in ([], ["learners=2"])
    ]
    assert check_branch(*run_plans).lines()[-1] == "old sequences do not move to other learners: uniform start empty"


def check_continued(first, runs, after):
    """Check that a branch of a run continues its counters and tables."""
    config = load(str(first.folder / "config.yaml"), ["stop.env_steps=1600", "run=second", *after])
    second = branch(first.folder, config, runs, starling.api.Quiet())
    rows = read_rows(second.folder / "metrics.jsonl")
    assert first.env_steps >= 800
    assert second.env_steps >= 1600
    assert second.updates > first.updates
    assert np.all(np.diff([row["env_steps"] for row in rows]) >= 0)
    last = rows[-1]
    replay = config.algo.name == "dqn"
    assert last[f"store/{'replay' if replay else 'unrolls'}/duplicate"] == 0, (
        "a new incarnation is never taken for an old one"
    )
    if replay:
        assert last["store/replay/size"] > 1300, "what was in the replay is still there"


def test_counters_of_a_finished_run_agree(finished):
    counters = Counters.of(RunFolder(finished("dqn", "processes").folder))
    assert counters.env_steps == sum(counters.inserted)
    assert 0 <= sum(counters.drawn) - counters.updates <= UNDER_WAY
    assert counters.updates > 0


def test_resuming_continues_in_the_same_folder(finished, tmp_path):
    first = finished("impala", "processes")
    folder = shutil.copytree(first.folder, tmp_path / "copy")
    config = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(config.replace("env_steps: 800", "env_steps: 1600"))
    again = starling.resume(folder)
    assert again.folder == folder
    assert again.env_steps >= 1600
    assert again.updates > first.updates
