"""Learners that never find each other: the run fails after a few attempts, with the reason."""

import queue
from types import SimpleNamespace

import pytest

from starling.config.schema import SupervisionConfig
from starling.runtime import regroup
from starling.runtime.learners_runtime import LatestState, LearnersRuntime
from starling.runtime.messages import JoinLearners, RankWaits
from starling.runtime.regroup import MAX_FAILURES
from starling.runtime.supervisor import RunFailedError


class UnreachableRank:
    """The hub of a rank that loses the others in every attempt to join them."""

    failure = None

    def __init__(self, rank, events):
        self._rank, self._events, self.attempts = rank, events, 0
        self.store = SimpleNamespace(env_steps=0)

    def start(self):
        self._events.put((self._rank, RankWaits(0, 0, late=False)))

    def send_to_rank(self, message):
        assert isinstance(message, JoinLearners)
        self.attempts += 1
        why = "the learners did not connect: connection refused"
        self._events.put((self._rank, RankWaits(0, 0, late=True, why=why)))

    def notices(self):
        return []


def test_run_fails_with_the_reason_after_some_attempts(monkeypatch):
    monkeypatch.setattr(regroup, "FIRST_PAUSE", 0.001)
    events = queue.SimpleQueue()
    hubs = [UnreachableRank(rank, events) for rank in range(2)]
    learner = SimpleNamespace(get_state=dict, updates=0)
    runtime = LearnersRuntime(hubs, learner, [], [], LatestState(), events, SupervisionConfig())
    with pytest.raises(RunFailedError, match=r"8 times in a row .* connect: connection refused; if they are only slow"):
        for _ in runtime.run():
            pass
    assert [hub.attempts for hub in hubs] == [MAX_FAILURES] * 2
    assert len([line for line in runtime.notices() if "lost the others" in line]) == 2 * MAX_FAILURES
