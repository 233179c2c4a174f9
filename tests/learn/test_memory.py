"""R2D2's stored recurrent states reach further back than the sequences that are replayed."""

STEPS = 30_000


def test_a_cue_before_the_sequence_is_recalled_only_from_the_stored_state(trial):
    """The cue comes 21 steps before the question, and a sequence has 20: none shows both.

    Return 1 at best, 0 on average for an agent that does not know the cue. A sequence that starts from a zero state
    shows the question without its answer, so what is learned from it is a guess. The control's return wanders further
    from 0 than chance alone would have it: -0.34 to 0.28 were seen, over 100 episodes each.
    """
    settings = [f"stop.env_steps={STEPS}"]
    stored = trial("state=stored", "r2d2-memory", [*settings, "stop.return=0.95"])
    zero = trial("state=zero", "r2d2-memory", [*settings, "algo.state=zero"])
    assert stored > 0.9
    assert zero < 0.45
