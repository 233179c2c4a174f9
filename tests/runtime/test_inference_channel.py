"""The channel of central inference with more env loops than a process may be given file descriptors."""

import resource
import threading

import numpy as np
import pytest
from support.driving import TIMEOUT
from support.inference_serving import LAYOUT, serve, step

from starling.errors import UserError
from starling.runtime.inference_channel import LoopSide, ServerSide, SharedInferenceChannel
from starling.runtime.link import wait_readable
from starling.runtime.open_files import check_limit
from starling.runtime.process_worker import context

LOOPS = 600


def test_a_server_process_serves_more_loops_than_it_gets_descriptors():
    channel = SharedInferenceChannel(LAYOUT, dict.fromkeys(range(LOOPS), 1))
    server = context().Process(target=serve, args=(channel.server_port(), LOOPS), daemon=True)
    server.start()
    try:
        loops = [LoopSide(channel.loop_port(group), group, 0) for group in range(LOOPS)]
        for group, loop in enumerate(loops):
            loop.observe(group, step(group))
        for group, loop in enumerate(loops):
            while (actions := loop.act([group]))[0] is None:
                assert server.is_alive(), "the server has failed"
                wait_readable([loop], 1)
            np.testing.assert_array_equal(actions[0], [group])
        server.join(TIMEOUT)
        assert server.exitcode == 0
    finally:
        server.kill()


def test_loops_wait_while_more_steps_than_fit_into_the_pipe_are_under_way():
    channel = SharedInferenceChannel(LAYOUT, {0: 1})
    loop, server, many = LoopSide(channel.loop_port(0), 0, 0), ServerSide(channel.server_port()), 10_000
    errors = []

    def observe():
        try:
            for number in range(many):
                loop.observe(0, step(number))
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=observe)
    thread.start()
    while thread.is_alive():
        server.arrivals()
    thread.join()
    server.arrivals()
    assert errors == []


def test_too_few_open_files_are_named_before_a_worker_starts():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    check_limit(2)
    with pytest.raises(UserError, match="ulimit -Hn"):
        check_limit(10**8)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) >= before
