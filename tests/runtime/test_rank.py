"""The messages of a learner in its own process."""

from types import SimpleNamespace

import pytest

from starling.actor.usage import Usage
from starling.runtime.link import link
from starling.runtime.messages import BatchReady, BrokenMessageError, Evaluate, RankWaits
from starling.runtime.rank import LearnerRank, RankSpec
from starling.runtime.rendezvous import RankLine


@pytest.fixture
def rank_and_hub():
    """A rank that waits for others, and the hub's end of its link."""
    ours, theirs = link()
    learner = SimpleNamespace(position=(7, 0))
    rank = LearnerRank(RankSpec(0, 2, 1.0, "127.0.0.1"), learner, [], RankLine(theirs), None, None, Usage())
    yield rank, ours
    ours.close()
    theirs.close()


def test_rank_reports_that_it_waits(rank_and_hub):
    rank, hub = rank_and_hub
    hub.send(BatchReady(0, 1))
    assert rank.step() is False
    assert hub.receive() == [RankWaits(7, 0, late=False)]


def test_rank_rejects_a_message_for_another_kind_of_worker(rank_and_hub):
    rank, hub = rank_and_hub
    hub.send(Evaluate({}))
    with pytest.raises(BrokenMessageError, match="Evaluate, which a learner does not handle"):
        rank.step()


def test_rank_ends_quietly_with_the_main_process(rank_and_hub):
    rank, hub = rank_and_hub
    hub.close()
    with pytest.raises(EOFError, match="the main process is gone"):
        rank.step()
