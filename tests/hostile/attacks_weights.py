"""Weights to start from (`init_from`) that no run has written: of a stranger's run, and in a file."""

import os
import pickle

import numpy as np
from attacks_checkpoints import Bomb
from corpus import FALLS_BACK, UNHARMED, UNTOUCHED, attack, change_array, change_header, rewrite
from safetensors.numpy import load, save


def _change(place, change):
    """Let `change(arrays)` modify the file of weights."""
    arrays = {name: np.array(array) for name, array in load(place.weights.read_bytes()).items()}
    change(arrays)
    place.weights.write_bytes(save(arrays))


def _fill(arrays, value):
    for array in arrays.values():
        if array.dtype.kind == "f":
            array.fill(value)


@attack("init file")
def weights_that_are_nan(place):
    _change(place, lambda arrays: _fill(arrays, np.nan))


@attack("init file")
def weights_that_are_infinite(place):
    _change(place, lambda arrays: _fill(arrays, np.inf))


@attack("init file")
def weights_that_are_infinite_in_the_network(place):
    """They are finite in the file, in a wider type."""
    _change(place, lambda arrays: arrays.update({name: _too_large(array) for name, array in arrays.items()}))


def _too_large(array):
    return np.full(array.shape, 1e300) if array.dtype == np.float32 else array


@attack("init file")
def no_weights_at_all(place):
    place.weights.write_bytes(save({}))


@attack("init file")
def weights_of_another_network(place):
    place.weights.write_bytes(save({"x": np.zeros(3, np.float32)}))


@attack("init file")
def names_that_change_the_terminal(place):
    place.weights.write_bytes(save({f"\x1b[31m\n{i}.weight": np.zeros(3, np.float32) for i in range(100)}))


@attack("init file", ends=UNHARMED)
def many_more_tensors_with_long_names(place):
    _change(place, lambda arrays: arrays.update({f"{'x' * 2000}{i}": np.zeros(1, np.float32) for i in range(1000)}))


@attack("init file")
def a_pickle_in_place_of_the_file(place):
    place.weights.write_bytes(pickle.dumps(Bomb()))


@attack("init file")
def a_link_in_place_of_the_file(place):
    target = place.weights.rename(place.weights.with_name("real.safetensors"))
    place.weights.symlink_to(target)


@attack("init file")
def a_fifo_in_place_of_the_file(place):
    place.weights.unlink()
    os.mkfifo(place.weights)


@attack("init file")
def a_huge_file(place):
    os.truncate(place.weights, 2**43)


@attack("init file")
def a_header_that_claims_more(place):
    def change(header):
        for entry in header.values():
            entry["shape"] = [2**40]

    place.weights.write_bytes(change_header(place.weights, change))


@attack("init file")
def an_empty_file(place):
    place.weights.write_bytes(b"")


@attack("init", ends=FALLS_BACK)
def a_pickle_among_the_weights_of_a_run(place):
    rewrite(place.newest, "learner.safetensors", pickle.dumps(Bomb()))


@attack("init", ends=UNTOUCHED)
def nan_among_the_weights_of_a_run(place):
    change_array(place.newest, "learner", "0.weight", lambda array: array * np.nan)


@attack("resume", "eval", ends=FALLS_BACK)
def infinity_among_the_weights_of_a_checkpoint(place):
    change_array(place.newest, "learner", "0.weight", lambda array: array + np.inf)


@attack("resume", "eval", ends=FALLS_BACK)
def weights_of_a_checkpoint_that_are_infinite_in_the_network(place):
    change_array(place.newest, "learner", "0.weight", _too_large)


@attack("init", ends=UNTOUCHED)
def a_link_beside_the_weights_of_a_run(place):
    (place.run / "log.txt").unlink()
    (place.run / "log.txt").symlink_to(place.outside / "precious.txt")


@attack("init", ends=UNHARMED)
def imports_in_the_configuration_of_a_run(place):
    """Nothing of it is read: only the weights are."""
    text = (place.run / "config.yaml").read_text()
    (place.run / "config.yaml").write_text(text.replace("id: CartPole-v1", "id: os:system"))
