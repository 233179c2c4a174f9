"""The names that are offered exist, are listed, and cost nothing before they are used."""

import subprocess
import sys

import pytest

import starling


@pytest.mark.parametrize("name", starling.__all__)
def test_every_exported_name_is_there(name):
    assert getattr(starling, name).__name__ == name


def test_the_list_and_the_homes_agree():
    assert sorted(starling.__all__) == starling.__all__
    assert set(starling.__all__) == set(starling._HOME_OF)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = starling.nothing


def test_importing_starling_imports_nothing_heavy():
    code = "import sys, starling; sys.exit(any(m in sys.modules for m in ('torch', 'numpy', 'pydantic')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_is_known_without_networks_needs_no_torch():
    code = """
import importlib, sys
for name in ("config.env", "experiment.bottleneck", "experiment.warnings", "cli.play", "tools.video"):
    importlib.import_module(f"starling.{name}")
    assert "torch" not in sys.modules, name
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
