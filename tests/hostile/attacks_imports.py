"""Code in a run's configuration: nothing that a stranger names is imported, called, or connected to."""

import json
import os

import yaml
from corpus import UNHARMED, UNTOUCHED, attack

IMPORTING = ("resume", "branch", "eval", "play", "info", "export")
"""Every command that imports what a run's configuration names."""


def _change(place, **sections):
    """Replace values in sections of the run's configuration; a dict is merged into its section."""
    file = place.run / "config.yaml"
    values = yaml.safe_load(file.read_text())
    for name, value in sections.items():
        values[name] = values[name] | value if isinstance(value, dict) else value
    file.write_text(yaml.safe_dump(values))


@attack(*IMPORTING, ends=UNTOUCHED)
def the_env_is_a_shell(place):
    """The most obvious attack."""
    _change(place, env={"id": "os:system", "args": {"command": f"touch {place.outside}/pwned"}})


@attack(*IMPORTING, ends=UNTOUCHED)
def the_algorithm_is_a_module(place):
    """It would be imported when the configuration is loaded."""
    _change(place, algo={"name": "canary:Algorithm"})


@attack("show", "diff", "report", ends=UNHARMED)
def the_algorithm_is_a_module_and_the_config_is_shown(place):
    """`config show` is for looking at what a stranger has sent."""
    the_algorithm_is_a_module(place)


@attack("eval", "resume", ends=UNTOUCHED)
def an_env_that_a_module_registers(place):
    """Gymnasium imports the part before the colon."""
    _change(place, env={"id": "canary:Zen-v0"})


@attack("eval", "resume", ends=UNTOUCHED)
def a_wrapper_of_a_stranger(place):
    """It would be imported before the env is made."""
    _change(place, env={"wrappers": [{"name": "canary:Wrapper"}]})


@attack("eval", "resume", ends=UNTOUCHED)
def a_wrapper_that_writes_files(place):
    """A wrapper of Gymnasium, which needs no import path."""
    folder = str(place.outside / "videos")
    _change(place, env={"wrappers": [{"name": "RecordVideo", "args": {"video_folder": folder}}]})


@attack("eval", "resume", ends=UNTOUCHED)
def the_torso_is_a_module(place):
    """It would be called with the observation space."""
    _change(place, net={"torso": {"kind": "canary:Module"}})


@attack("eval", "resume", ends=UNTOUCHED)
def the_core_is_a_module(place):
    """Likewise for the recurrent core."""
    _change(place, net={"core": {"kind": "canary:Module", "size": 4}})


@attack("eval", "resume", ends=UNTOUCHED)
def curiosity_is_a_module(place):
    """Likewise for an intrinsic reward."""
    _change(place, curiosity=[{"kind": "canary:Novelty"}])


@attack("eval", "resume", ends=UNTOUCHED)
def an_argument_that_an_env_would_import(place):
    """Envs that make other envs take import paths as arguments."""
    _change(place, env={"args": {"deep": [{"er": "canary:Env"}]}})


@attack("resume", ends=UNTOUCHED)
def the_cluster_of_a_stranger(place):
    """Ray runs code in both directions."""
    _change(place, runtime="ray", ray={"address": "ray://127.0.0.1:9"})


@attack("eval", ends=UNTOUCHED)
def a_forged_seal(place):
    """Made without the user's key."""
    the_env_is_a_shell(place)
    (place.run / "trust.json").write_text(json.dumps({"version": 1, "imports": "0" * 64, "cluster": "0" * 64}))


@attack("eval", ends=UNTOUCHED)
def a_seal_that_is_a_bomb(place):
    """It is neither decompressed nor read completely."""
    the_env_is_a_shell(place)
    with (place.run / "trust.json").open("wb") as file:
        file.write(b"[")
        os.truncate(file.fileno(), 2**40)


@attack("eval", ends=UNTOUCHED)
def a_thousand_names_with_control_characters(place):
    """The error is still one line that is safe to show in a terminal."""
    names = [f"m{n}\n\x1b]0;owned\x07:x{'y' * 200}" for n in range(1000)]
    _change(place, env={"wrappers": [{"name": name} for name in names]})
