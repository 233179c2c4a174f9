"""A module that stands for a stranger's code: whoever imports it fails."""

raise AssertionError("the code of a stranger was imported")
