"""A module in the role of a stranger's code: importing it fails."""

raise AssertionError("the code of a stranger was imported")
