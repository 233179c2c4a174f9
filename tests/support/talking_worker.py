"""A worker that prints, and then hangs where no Python code runs."""

import ctypes
import os
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class TalkingArgs:
    hangs: bool

    def for_incarnations(self, incarnations):
        return self

    def build(self, link, usage):
        return TalkingRole(self.hangs)


class TalkingRole:
    def __init__(self, hangs):
        self._hangs = hangs

    def step(self):
        print("a line of Python")
        os.write(2, b"a line of C\nx" + b"y" * 5000 + b"\n")
        if self._hangs:
            self.hang_in_c()
        sys.stdout.write("no end of line")
        sys.exit(3)

    def hang_in_c(self):
        ctypes.PyDLL(None).sleep(1000)  # keeps the GIL

    def wait(self):
        return "wait_in", [], None

    def close(self): ...
