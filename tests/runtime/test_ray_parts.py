"""Parts of the Ray runtime that need no cluster."""

import os
import stat

import pytest

from starling.config.cluster import PlaceConfig
from starling.errors import UserError
from starling.runtime.ray.placement import Need, check, need
from starling.runtime.ray.token import MODE, PATH, TOKEN, check_token_file, ensure_token, token_file


def test_a_need_is_the_sum_of_its_parts():
    actor, server = PlaceConfig(cpus=0.5, resources={"fast": 1}), PlaceConfig(cpus=1, gpus=0.25)
    assert need("host 0", (actor, 4), (server, 1)).resources == {"CPU": 3.0, "GPU": 0.25, "fast": 4.0}
    assert need("evaluator", (PlaceConfig(cpus=0), 1)).resources["CPU"] > 0, "Ray wants something to be asked for"


@pytest.mark.parametrize(
    ("needs", "nodes", "words"),
    [
        ([{"CPU": 2}, {"CPU": 2}], [{"CPU": 4}], None),
        ([{"CPU": 2}, {"CPU": 2}], [{"CPU": 2}, {"CPU": 2}], None),
        ([{"CPU": 1}, {"CPU": 3}], [{"CPU": 1}, {"CPU": 3}], None),
        ([{"CPU": 4}], [{"CPU": 2}, {"CPU": 2}], "the most on one is 2 of 4 CPU"),
        ([{"CPU": 1, "fast": 1}], [{"CPU": 2}], "0 of 1 fast"),
        ([{"CPU": 2}] * 3, [{"CPU": 4}], "needs 6 CPU in all and the cluster has 4 CPU on 1 nodes: 2 CPU missing"),
        ([{"CPU": 2}] * 3, [{"CPU": 3}, {"CPU": 3}], "part 2 fits on no node beside the others"),
    ],
)
def test_what_is_missing_is_said(needs, nodes, words):
    asked = [Need(f"part {i}", one) for i, one in enumerate(needs)]
    if words is None:
        check(asked, nodes)
    else:
        with pytest.raises(UserError, match=words):
            check(asked, nodes)


def test_a_token_is_made_that_nobody_else_may_read(tmp_path, monkeypatch):
    monkeypatch.setenv(PATH, str(tmp_path / "new" / "token"))
    monkeypatch.setenv(MODE, "disabled")
    monkeypatch.delenv(TOKEN, raising=False)
    ensure_token()
    assert MODE not in os.environ, "Ray would not ask for the token"
    assert stat.S_IMODE(token_file().stat().st_mode) == 0o600
    first = token_file().read_text()
    assert len(first) == 64
    ensure_token()
    assert token_file().read_text() == first
    token_file().chmod(0o640)
    with pytest.raises(UserError, match="chmod 600"):
        check_token_file()
