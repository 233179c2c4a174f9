"""References to environment variables, and values that look like secrets."""

import os
import stat

import pytest

from starling.config import load as loading
from starling.config.load import (
    differences,
    from_dict,
    load,
    secret_values,
    secrets_warning,
    to_dict,
    to_saved,
    to_yaml,
)
from starling.config.secrets import HIDDEN, hide, hide_override, looks_secret
from starling.errors import UserError
from starling.experiment.run_folder import folder

SECRET = "tr0ub4dor&3"


@pytest.fixture
def variable(monkeypatch):
    monkeypatch.setenv("STARLING_TEST_TOKEN", SECRET)
    return "${env:STARLING_TEST_TOKEN}"


@pytest.mark.parametrize(
    "key",
    ["token", "api_key", "apiKey", "API_KEY", "db-password", "passwd", "clientSecret", "credentials", "authToken"],
)
def test_key_looks_like_a_secret(key):
    assert looks_secret(key)


@pytest.mark.parametrize("key", ["tokenizer", "key", "keys", "monkey", "passage", "author", "secretary", "size", "lr"])
def test_key_does_not_look_like_a_secret(key):
    assert not looks_secret(key)


def test_reference_is_resolved_when_loading_and_saved_unresolved(variable, tmp_path):
    config = load("ppo-cartpole", [f"env.args.url=https://{variable}@host", f"env.args.parts=[1, '{variable}']"])
    assert config.env.args == {"url": f"https://{SECRET}@host", "parts": [1, SECRET]}
    assert from_dict(to_dict(config)).env.args == config.env.args  # as workers get it
    assert to_saved(config)["env"]["args"] == {"url": f"https://{variable}@host", "parts": [1, variable]}
    file = tmp_path / "config.yaml"
    for text in (to_yaml(config), to_yaml(config, comments=True), to_yaml(config, hidden=True)):
        assert SECRET not in text
        file.write_text(text)
        assert load(str(file)) == config
    assert secrets_warning(config) is None


def test_reference_gets_the_type_of_its_key(monkeypatch):
    monkeypatch.setenv("STARLING_TEST_SEED", "7")
    config = load("ppo-cartpole", ["seed=${env:STARLING_TEST_SEED}"])
    assert config.seed == 7
    assert "seed: ${env:STARLING_TEST_SEED}" in to_yaml(config)
    assert "seed: 8" in to_yaml(config.model_copy(update={"seed": 8}))  # a value changed later is saved
    monkeypatch.setenv("STARLING_TEST_SEED", "many")
    with pytest.raises(UserError, match="seed: must be an integer"):
        load("ppo-cartpole", ["seed=${env:STARLING_TEST_SEED}"])


def test_unset_variable_is_a_one_line_error(monkeypatch):
    monkeypatch.delenv("STARLING_TEST_TOKEN", raising=False)
    with pytest.raises(UserError) as refused:
        load("ppo-cartpole", ["env.args.token=${env:STARLING_TEST_TOKEN}"])
    assert str(refused.value) == (
        "env.args.token: the environment variable STARLING_TEST_TOKEN is not set: export it, or change the value"
    )


@pytest.mark.parametrize("key", ["seed", "algo.name", "env.id", "algo.epochs", "curiosity.0.name"])
def test_unset_variable_causes_no_further_errors(key, monkeypatch):
    monkeypatch.delenv("STARLING_TEST_TOKEN", raising=False)
    with pytest.raises(UserError) as refused:
        load("ppo-cartpole", ["curiosity=[{kind: rnd}]", f"{key}=${{env:STARLING_TEST_TOKEN}}", "env.num=0"])
    lines = str(refused.value).splitlines()
    assert [line.partition(":")[0] for line in lines] == [key, "env.num"]


def test_likely_secret_is_masked_with_a_warning_and_saved_with_private_mode(tmp_path):
    wrappers = f"[{{name: Own, args: {{login: {{password: '{SECRET}'}}, size: 3}}}}]"
    config = load("ppo-cartpole", [f"env.args.token={SECRET}", f"env.wrappers={wrappers}"])
    warning = secrets_warning(config)
    assert warning.startswith("warning: env.wrappers.0.args.login.password, env.args.token look like a secret")
    assert SECRET not in warning + to_yaml(config, hidden=True) + to_yaml(config, hidden=True, comments=True)
    assert secret_values(config) == [SECRET]
    for mask in (0o022, 0o077):
        before = os.umask(mask)
        try:
            place = folder.create(tmp_path / str(mask), config)
            other = folder.create(tmp_path / str(mask), load("ppo-cartpole", ["run=other"]))
        finally:
            os.umask(before)
        assert place.config() == config
        assert mode(place.config_file) == 0o600
        assert mode(place.path) == mode(other.path) == 0o777 & ~mask
        assert mode(other.config_file) == 0o666 & ~mask


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_changes_are_shown_without_secrets():
    one, other = (load("ppo-cartpole", [f"env.args.token={value}"]) for value in (SECRET, "another one"))
    assert [(key, hide(sides, key)) for key, sides in differences(to_saved(one), to_saved(other))] == [
        ("env.args.token", (HIDDEN, HIDDEN))
    ]


def test_overrides_are_printed_without_secrets():
    assert hide_override(f"env.args.token={SECRET}") == f"env.args.token={HIDDEN}"
    assert hide_override(f"env.args={{'token': {SECRET}}}") == f"env.args={HIDDEN}"
    assert hide_override("env.args={size: 3}") == "env.args={size: 3}"
    with pytest.raises(UserError) as refused:
        load("ppo-cartpole", [f"env.args.token=[{SECRET}"])
    assert SECRET not in str(refused.value)


def test_reference_in_a_base_works(variable, tmp_path):
    (tmp_path / "base.yaml").write_text(f"base: ppo-cartpole\nenv: {{args: {{token: '{variable}'}}}}\n")
    (tmp_path / "own.yaml").write_text("base: base.yaml\nseed: 3\n")
    config = loading.load(str(tmp_path / "own.yaml"))
    assert config.env.args == {"token": SECRET}
    assert secrets_warning(config) is None
    assert SECRET in secret_values(config)


def test_reference_in_a_section_of_wrappers_is_saved_unresolved(variable, tmp_path):
    """Wrappers are saved as a list, whichever form they were given in."""
    file = tmp_path / "own.yaml"
    file.write_text(f"base: ppo-cartpole\nenv: {{wrappers: {{TimeLimit: {{note: 'u:{variable}@host'}}}}}}\n")
    config = load(str(file))
    assert config.env.wrappers[0].args == {"note": f"u:{SECRET}@host"}
    assert to_saved(config)["env"]["wrappers"] == [{"name": "TimeLimit", "args": {"note": f"u:{variable}@host"}}]
    assert {SECRET, f"u:{SECRET}@host"} <= set(secret_values(config)), "a message may hold only a part of the value"


def test_reference_that_would_not_be_found_again_is_refused(variable, tmp_path):
    """It would be saved, and shown, with its value."""
    file = tmp_path / "own.yaml"
    file.write_text(f"base: ppo-cartpole\nalgo: {{name: 'not_here:Algo', x: {{1: '{variable}'}}}}\n")
    with pytest.raises(UserError, match=r"'algo\.x\.1': a reference to an environment variable cannot stand here"):
        load(str(file), imports=False)
