"""Event files, read with TensorBoard's own reader."""

import subprocess
import sys
import textwrap

from support.traced_disk import TracedDisk
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.metadata import SESSION_START_INFO_TAG
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from starling.experiment.run_folder.tensorboard import TensorBoardFile


def scalars(folder):
    reader = EventAccumulator(str(folder))
    reader.Reload()
    return {tag: [(event.step, event.value) for event in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def test_every_number_is_a_scalar_at_its_env_steps(tmp_path):
    board = TensorBoardFile(tmp_path, None, print)
    board.write({"env_steps": 10, "updates": 1, "return": None, "note": "text"})
    board.write({"env_steps": 20, "updates": 2, "return": 1.5, "loss/value": 0.25})
    assert scalars(tmp_path)["return"] == [(20, 1.5)]  # readable while the run goes on
    board.close()
    board.close()
    assert scalars(tmp_path) == {
        "env_steps": [(10, 10), (20, 20)],
        "updates": [(10, 1), (20, 2)],
        "return": [(20, 1.5)],
        "loss/value": [(20, 0.25)],
    }


def test_resumed_run_voids_events_after_its_checkpoint(tmp_path):
    first = TensorBoardFile(tmp_path, None, print)
    for step in (10, 20, 30, 40):
        first.write({"env_steps": step, "return": 1.0})
    first.close()
    second = TensorBoardFile(tmp_path, 20, print)
    assert [step for step, _ in scalars(tmp_path)["return"]] == [10, 20]
    second.write({"env_steps": 35, "return": 2.0})
    second.close()
    assert scalars(tmp_path)["return"] == [(10, 1.0), (20, 1.0), (35, 2.0)]


def test_full_disk_is_one_warning(tmp_path):
    """The file is intact up to the last row that fitted."""
    script = """
        import resource, sys
        from pathlib import Path
        from starling.experiment.run_folder.tensorboard import TensorBoardFile
        board = TensorBoardFile(Path(sys.argv[1]), None, print)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        for step in range(200):
            board.write({"env_steps": step, "return": 1.0})
        board.close()
        assert "torch" not in sys.modules
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    (line,) = done.stdout.splitlines()
    (file,) = tmp_path.iterdir()
    assert line.startswith(f"warning: cannot write to {file}: File too large; training goes on")
    assert len(scalars(tmp_path)["return"]) > 5


def test_rows_wait_on_a_full_disk_and_none_is_lost(tmp_path, monkeypatch):
    board = TensorBoardFile(tmp_path, None, print)
    traced = TracedDisk(monkeypatch, room=100)
    for step in range(5):
        board.write({"env_steps": step, "return": 1.0})
    assert 0 < len(scalars(tmp_path)["return"]) < 5
    traced.room = None
    board.close()
    assert [step for step, _ in scalars(tmp_path)["return"]] == list(range(5))


def test_folder_that_cannot_be_created_is_one_warning(tmp_path):
    (tmp_path / "file").write_text("")  # a file in the place of the folder
    said = []
    board = TensorBoardFile(tmp_path / "file", None, said.append)
    board.write({"env_steps": 1})
    board.close()
    assert len(said) == 1


def test_settings_are_hyper_parameters(tmp_path):
    settings = {"seed": 3, "compile": "auto", "algo": {"lr": 0.5, "double": True, "sizes": [1, 2]}, "run": None}
    TensorBoardFile(tmp_path, None, print, settings).close()
    reader = EventAccumulator(str(tmp_path))
    reader.Reload()
    content = reader.SummaryMetadata(SESSION_START_INFO_TAG).plugin_data.content
    found = HParamsPluginData.FromString(content).session_start_info.hparams
    assert {key: getattr(value, value.WhichOneof("kind")) for key, value in found.items()} == {
        "seed": 3,
        "compile": "auto",
        "algo.lr": 0.5,
        "algo.double": True,
        "algo.sizes": "[1, 2]",
    }


def test_image_has_its_step_and_size(tmp_path):
    board = TensorBoardFile(tmp_path, None, print)
    board.write_image("video", (b"GIF89a", (2, 3)), 40)
    board.close()
    reader = EventAccumulator(str(tmp_path))
    reader.Reload()
    (image,) = reader.Images("video")
    assert (image.step, image.height, image.width, image.encoded_image_string) == (40, 2, 3, b"GIF89a")
