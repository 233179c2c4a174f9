"""Arrays as written here, compared with the safetensors library, which reads them."""

import numpy as np
from safetensors.numpy import load_file

from starling.experiment.run_folder.arrays import write_arrays

INTEGER_OR_BOOL = [f"{kind}{bits}" for kind in ("uint", "int") for bits in (8, 16, 32, 64)]
DTYPES = ["bool", *INTEGER_OR_BOOL, "float16", "float32", "float64"]


def test_safetensors_reads_the_written_arrays(tmp_path):
    rng = np.random.default_rng(0)
    shapes = [(), (0,), (3,), (2, 0, 4), (5, 1, 3)]
    arrays = {f"{d}/{i}": np.asarray(rng.integers(0, 99, s)).astype(d) for d in DTYPES for i, s in enumerate(shapes)}
    write_arrays(tmp_path / "x", arrays)
    again = load_file(tmp_path / "x")
    assert again.keys() == arrays.keys()
    for name, array in arrays.items():
        assert again[name].dtype == array.dtype
        assert again[name].shape == array.shape
        assert (again[name] == array).all()
