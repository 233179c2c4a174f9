"""Errors of `starling resume`."""

from starling.config.load import load
from starling.experiment.run_folder.folder import create


def test_other_algorithm_is_a_one_line_error_with_code_2(tmp_path, in_process):
    place = create(tmp_path, load("dqn-cartpole", ["run=mine"]))
    code, _, complaint = in_process("resume", place.path, "algo.name=ppo")
    assert code == 2
    (line,) = complaint.splitlines()
    assert line.startswith("error: a branch cannot change the algorithm: algo.name=ppo")
