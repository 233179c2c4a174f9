"""The key that marks the user's own runs, and the seals made with it."""

import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from starling.errors import UserError
from starling.experiment.run_folder import trust

OWN = {"algo": {"name": "ppo"}, "env": {"id": "mine:Env"}}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config"


@pytest.fixture
def sealed(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    assert trust.seal(folder, OWN) is None
    return folder


def refused(folder, values=OWN, allow=()):
    with pytest.raises(UserError) as error:
        trust.check(folder, values, allow)
    (line,) = str(error.value).splitlines()
    return line


def test_key_is_created_on_first_use_with_private_mode(home, tmp_path):
    before = os.umask(0)
    try:
        assert trust.seal(tmp_path, {"env": {"id": "CartPole-v1"}}) is None
        assert not home.exists()  # there is nothing to seal
        assert trust.seal(tmp_path, OWN) is None
    finally:
        os.umask(before)
    key = home / "starling" / "key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    assert len(key.read_bytes()) == 32
    assert [file.name for file in key.parent.iterdir()] == ["key"]
    content = key.read_bytes()
    trust.seal(tmp_path, OWN)
    assert key.read_bytes() == content


def test_numbers_may_change_but_imports_may_not(sealed):
    trust.check(sealed, OWN)
    trust.check(sealed, {**OWN, "seed": 7, "net": {"torso": {"kind": "mlp"}}})
    line = refused(sealed, {**OWN, "net": {"torso": {"kind": "evil.nets:Torso"}}})
    assert "made with another key or for another config.yaml" in line
    assert "mine:Env (env.id), evil.nets:Torso (net.torso.kind)" in line
    assert "--allow mine --allow evil " in line
    assert line.endswith("STARLING_ALLOW=mine,evil")


def test_folder_without_imports_needs_neither_seal_nor_key(tmp_path, home):
    trust.check(tmp_path, {"env": {"id": "CartPole-v1"}})
    assert not home.exists()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "it has no trust.json"),
        (b"", "its trust.json is damaged"),
        (b"[" * 1000, "its trust.json is damaged"),
        (b"[]", "its trust.json is damaged"),
        (b'{"imports": 3}', "its trust.json is damaged"),
        ('{"imports": "é"}'.encode(), "its trust.json is damaged"),
        (b'{"imports": ""}', "made with another key or for another config.yaml"),
        (b'{"imports": "' + b"0" * 2000 + b'"}', "its trust.json is damaged"),
    ],
)
def test_missing_or_invalid_seal_is_rejected(sealed, content, reason):
    (sealed / "trust.json").unlink()
    if content is not None:
        (sealed / "trust.json").write_bytes(content)
    assert reason in refused(sealed)


def test_seal_that_is_a_symlink_or_a_pipe_is_not_read(sealed):
    seal = sealed / "trust.json"
    seal.rename(sealed / "elsewhere")
    seal.symlink_to(sealed / "elsewhere")
    assert "its trust.json is damaged" in refused(sealed)
    seal.unlink()
    os.mkfifo(seal)
    assert "its trust.json is damaged" in refused(sealed)


def test_seal_made_with_another_key_is_rejected(sealed, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "other"))
    assert "you have no key here yet" in refused(sealed)
    (tmp_path / "second").mkdir()
    trust.seal(tmp_path / "second", OWN)
    assert "made with another key" in refused(sealed)


def test_copied_key_accepts_seals_on_another_machine(sealed, monkeypatch, tmp_path, home):
    other = tmp_path / "other" / "starling"
    other.mkdir(parents=True)
    (other / "key").write_bytes((home / "starling" / "key").read_bytes())
    (other / "key").chmod(0o600)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(other.parent))
    trust.check(sealed, OWN)


def test_processes_that_create_a_key_concurrently_get_the_same_key(home):
    with ThreadPoolExecutor(16) as pool:
        keys = {made.result() for made in [pool.submit(trust._make_key) for _ in range(64)]}
    assert keys == {(home / "starling" / "key").read_bytes()}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_key_file_of_another_user_is_not_used(sealed, home):
    os.chown(home / "starling" / "key", 12345, -1)
    assert "belongs to another user" in refused(sealed)


def test_readable_or_invalid_key_file_is_not_used(sealed, home):
    key = home / "starling" / "key"
    key.chmod(0o640)
    assert f"others may read {key}; change it with: chmod 600" in refused(sealed)
    key.chmod(0o600)
    content = key.read_bytes()
    for wrong in (b"", content[:-1], content + b"x"):
        key.write_bytes(wrong)
        assert f"{key} is not a key; remove it" in refused(sealed)
    key.write_bytes(content)
    key.rename(key.with_name("elsewhere"))
    key.symlink_to(key.with_name("elsewhere"))
    assert f"{key} is a symlink; replace it by the file that it points to" in refused(sealed)
    assert "is a symlink; replace it" in trust.seal(sealed, OWN)


def test_without_a_writable_key_the_run_continues_and_says_which_option_it_will_need(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", "/proc/nosuch")  # root could write anywhere else
    problem = trust.seal(tmp_path, OWN)
    assert "cannot be marked as yours (cannot write /proc/nosuch/starling/key: No such file" in problem
    assert problem.endswith("--allow mine")
    assert not (tmp_path / "trust.json").exists()
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")  # which the XDG specification says to ignore
    monkeypatch.setenv("HOME", str(tmp_path))
    assert trust.key_file() == tmp_path / ".config" / "starling" / "key"
    monkeypatch.setenv("HOME", "nowhere")
    assert "there is no home folder; set HOME or XDG_CONFIG_HOME" in trust.seal(tmp_path, OWN)


def test_packages_are_allowed_by_argument_and_by_environment(tmp_path, monkeypatch):
    values = {"env": {"id": "mine:Env"}, "net": {"torso": {"kind": "nets.own:Torso"}}}
    assert "nets.own:Torso (net.torso.kind);" in refused(tmp_path, values, ["mine"])
    monkeypatch.setenv("STARLING_ALLOW", " nets.own , ,other")
    trust.check(tmp_path, values, ["mine"])
    assert "mine:Env" in refused(tmp_path, values)


def test_untrusted_text_is_shown_as_one_printable_line_that_is_safe_to_paste(tmp_path):
    values = {"env": {"id": "a; rm -rf ~\n\x1b[2J\u043e:x" + "y" * 5000}, "args": [f"p{n}:X" for n in range(100)]}
    line = refused(tmp_path, values)
    assert line.isprintable()
    assert line.isascii()
    assert len(line) < 2500
    assert "and 93 more" in line
    assert "--allow 'a; rm -rf ~" in line


def test_seal_does_not_reveal_the_key(sealed, home):
    content = json.loads((sealed / "trust.json").read_text())
    assert content.keys() == {"version", "imports", "cluster"}
    assert (home / "starling" / "key").read_bytes().hex() not in content["imports"]


def test_seal_may_exclude_the_cluster(tmp_path):
    assert trust.seal(tmp_path, OWN | CLUSTER, cluster=False) is None
    trust.check(tmp_path, OWN | CLUSTER)
    assert "(its trust.json does not cover that)" in cluster_refused(tmp_path, OWN | CLUSTER)
    (tmp_path / "other").mkdir()
    assert trust.seal(tmp_path / "other", CLUSTER, cluster=False) is None
    assert not (tmp_path / "other" / "trust.json").exists()


def test_options_are_those_that_a_command_will_need(tmp_path, sealed, monkeypatch):
    assert trust.options(sealed, OWN, joins=True) == ""
    assert trust.options(tmp_path, OWN | CLUSTER, joins=False) == "--allow mine"
    allowed = f"--allow mine --allow ray://head:10001 --allow {CLUSTER_LEAVE}"
    assert trust.options(tmp_path, OWN | CLUSTER, joins=True) == allowed
    monkeypatch.setenv("STARLING_ALLOW", "mine")
    assert trust.options(tmp_path, OWN, joins=True) == ""


CLUSTER_LEAVE = "ray.allow_cluster_without_authentication"
CLUSTER = {"ray": {"address": "ray://head:10001", "allow_cluster_without_authentication": True}}


def cluster_refused(folder, values=CLUSTER, allow=(), typed=()):
    with pytest.raises(UserError) as error:
        trust.check_cluster(folder, values, allow, typed)
    (line,) = str(error.value).splitlines()
    return line


def test_untrusted_cluster_must_be_allowed(tmp_path, monkeypatch):
    line = cluster_refused(tmp_path)
    assert "would join ray://head:10001 (ray.address), ray.allow_cluster_without_authentication (ray.allow" in line
    assert "--allow ray://head:10001 --allow ray.allow_cluster_without_authentication " in line
    assert "would join ray://head:10001 (ray.address);" in cluster_refused(tmp_path, CLUSTER, [CLUSTER_LEAVE])
    assert f"would join {CLUSTER_LEAVE} (" in cluster_refused(tmp_path, CLUSTER, typed=["ray.address"])
    trust.check_cluster(tmp_path, CLUSTER, typed=["ray"])
    trust.check_cluster(tmp_path, {"ray": {"address": "auto"}})
    trust.check_cluster(tmp_path, {"ray": {"address": None, "allow_cluster_without_authentication": False}})
    monkeypatch.setenv("STARLING_ALLOW", f"ray://head:10001,{CLUSTER_LEAVE}")
    trust.check_cluster(tmp_path, CLUSTER)


def test_own_cluster_is_sealed_separately_from_imports(tmp_path):
    assert trust.seal(tmp_path, OWN | CLUSTER) is None
    trust.check_cluster(tmp_path, CLUSTER)
    trust.check(tmp_path, OWN | {"ray": {"address": "other:1"}})
    assert "other:1 (ray.address)" in cluster_refused(tmp_path, OWN | {"ray": {"address": "other:1"}})
    digests = json.loads((tmp_path / "trust.json").read_text())
    (tmp_path / "trust.json").write_text(json.dumps({"cluster": digests["imports"]}))
    assert "made with another key" in cluster_refused(tmp_path, {"ray": {"address": "mine:Env"}})
