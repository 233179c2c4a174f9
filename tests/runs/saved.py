"""Checkpoints as tests make and damage them."""

from starling.frozen import freeze
from starling.runs import checkpoint


def save(root, step, state, **settings):
    return checkpoint.write(root, step, freeze(state), **settings)


def truncate(file):
    file.write_bytes(file.read_bytes()[:-1])


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
