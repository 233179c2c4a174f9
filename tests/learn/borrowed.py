"""Makes the envs and agents of tests/learning and of the benchmarks importable."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "tests" / "learning"), str(ROOT / "benchmarks")]
