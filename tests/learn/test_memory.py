"""R2D2's stored recurrent states carry information from before the replayed sequence."""

STEPS = 30_000


def test_only_a_stored_state_recalls_a_cue_from_before_the_sequence(trial):
    """The cue comes 21 steps before the question, and a sequence has 20 steps: none contains both.

    The return is 1 at best, and 0 on average for an agent that does not know the cue. A sequence that starts from a
    zero state has the question without its answer, so the agent learns to guess. The control's return varies more than
    by chance: -0.34 to 0.28 were seen, over 100 episodes each.
    """
    settings = [f"stop.env_steps={STEPS}"]
    stored = trial("state=stored", "r2d2-memory", [*settings, "stop.return=0.95"])
    zero = trial("state=zero", "r2d2-memory", [*settings, "algo.state=zero"])
    assert stored > 0.9
    assert zero < 0.45
