"""`starling resume` where it is refused."""

from starling.config.load import load
from starling.experiment.run_folder.folder import create


def test_another_algorithm_is_one_line_and_exit_code_2(tmp_path, in_process):
    place = create(tmp_path, load("dqn-cartpole", ["run=mine"]))
    code, _, complaint = in_process("resume", place.path, "algo.name=ppo")
    assert code == 2
    (line,) = complaint.splitlines()
    assert line.startswith("error: a branch cannot change the algorithm: algo.name=ppo")
