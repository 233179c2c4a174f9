"""States of tables and policies, of a valid form, that would crash a run or access memory outside its arrays."""

import numpy as np
from corpus import REFUSED, attack, change_array, change_document, newest_of


@attack("resume stacked", ends=REFUSED)
def stacks_that_are_older_than_the_ring(place):
    """New steps would continue these ages, and frames would be written outside of their buffer."""
    newest = newest_of(place.stacked)
    heads = []
    change_array(newest, "store", "windows/head", lambda head: heads.extend(head.tolist()) or head)

    def age(since):
        for ring, head in enumerate(heads):
            since[ring, head] = -30_000
        return since

    change_array(newest, "store", "obs/0/since", age)
    change_array(newest, "store", "windows/steps", np.zeros_like)
    change_array(newest, "store", "sampler/members", lambda members: members[:0])
    change_document(newest, "store", "limiter/sizes", {"value": [0]})


@attack("resume stacked", ends=REFUSED)
def stacks_with_missing_first_frames(place):
    """In steps where no sequence begins yet."""
    newest = newest_of(place.stacked)
    change_array(newest, "store", "obs/0/since", np.zeros_like)


@attack("resume stacked", ends=REFUSED)
def missing_items(place):
    change_array(newest_of(place.stacked), "store", "windows/steps", np.zeros_like)


@attack("resume stacked", ends=REFUSED)
def segments_of_steps_that_begin_in_the_future(place):
    change_array(newest_of(place.stacked), "store", "windows/start", lambda start: start + 10**6)


def _record(place, **change):
    for name, value in change.items():
        change_document(newest_of(place.stacked), "policies", f"0/recorders/0/{name}", {"value": value})


@attack("resume stacked", ends=REFUSED)
def a_fragment_with_a_step_in_the_future(place):
    _record(place, t=1_000_000)


@attack("resume stacked", ends=REFUSED)
def a_fragment_with_a_step_in_the_past(place):
    _record(place, t=-5)


@attack("resume stacked", ends=REFUSED)
def a_fragment_that_is_full(place):
    _record(place, t=16)


@attack("resume stacked", ends=REFUSED)
def a_fragment_with_a_step_of_text(place):
    _record(place, t="x")


@attack("resume stacked", ends=REFUSED)
def a_fragment_with_an_infinite_step(place):
    _record(place, t=1e300)


@attack("resume stacked", ends=REFUSED)
def a_fragment_with_a_sequence_of_text(place):
    _record(place, sequence="x")


@attack("resume stacked", ends=REFUSED)
def envs_with_a_fractional_step_count(place):
    change_document(newest_of(place.stacked), "policies", "0/groups/0/step", {"value": 0.5})


@attack("resume stacked", ends=REFUSED)
def envs_with_other_observations(place):
    change_array(newest_of(place.stacked), "policies", "groups/0/arrays/1/obs", lambda obs: obs[:, :1])


@attack("resume stacked", ends=REFUSED)
def progress_of_text(place):
    change_document(newest_of(place.stacked), "policies", "0/progress/updates", {"value": "16"})


@attack("resume stacked", ends=REFUSED)
def env_steps_of_a_loop_that_are_text(place):
    change_document(newest_of(place.stacked), "loops", "0/env_steps", {"value": "300"})


@attack("resume stacked", ends=REFUSED)
def fragments_in_flight_without_an_actor(place):
    """No actor would ever get a credit again."""
    change_document(newest_of(place.stacked), "store", "limiter/in_flight", {"value": 10**15})


@attack("resume stacked", "resume", ends=REFUSED)
def more_batches_than_steps_allow(place):
    """The learner would not learn again for years."""
    for run in (place.run, place.stacked):
        change_document(newest_of(run), "store", "limiter/sampled", {"value": 10**9})
