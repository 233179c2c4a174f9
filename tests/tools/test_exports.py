"""Exported names exist, are listed, and are imported only on use."""

import subprocess
import sys

import pytest

import starling


@pytest.mark.parametrize("name", starling.__all__)
def test_every_exported_name_exists(name):
    assert getattr(starling, name).__name__ == name


def test_all_lists_exactly_the_lazy_names():
    assert sorted(starling.__all__) == starling.__all__
    assert set(starling.__all__) == set(starling._HOME_OF)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = starling.nothing


def test_importing_starling_imports_nothing_slow():
    code = "import sys, starling; sys.exit(any(m in sys.modules for m in ('torch', 'numpy', 'pydantic')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_names_without_networks_do_not_import_torch():
    code = """
import importlib, sys
for name in ("config.env", "experiment.bottleneck", "experiment.warnings", "cli.play", "tools.video"):
    importlib.import_module(f"starling.{name}")
    assert "torch" not in sys.modules, name
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
