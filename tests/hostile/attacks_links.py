"""Links and special files in a run: nothing outside may be read, written, or removed."""

import os
import shutil
import socket

from corpus import EVERY, UNHARMED, UNTOUCHED, attack


def _replace(path, target):
    """Replace what is there by a link to `target`."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.symlink_to(target)


@attack(*EVERY, ends=UNTOUCHED)
def segments_is_a_link(place):
    """The sweep would remove every file behind it."""
    (place.run / "checkpoints" / "segments").symlink_to(place.outside)


@attack("resume", "eval", ends=UNTOUCHED)
def checkpoints_is_a_link(place):
    """Checkpoints would be written and pruned elsewhere."""
    shutil.move(place.run / "checkpoints", place.outside / "checkpoints")
    _replace(place.run / "checkpoints", place.outside / "checkpoints")


@attack("resume", ends=UNTOUCHED)
def a_partial_metrics_file_is_a_link(place):
    """Its target would be overwritten with the attacker's rows."""
    (place.run / ".unfinished-metrics.jsonl").symlink_to(place.outside / "precious.txt")


@attack("resume", "metrics", "report", ends=UNTOUCHED)
def the_metrics_are_a_link(place):
    """Rows would be appended to its target."""
    _replace(place.run / "metrics.jsonl", place.outside / "precious.txt")


@attack("resume", ends=UNTOUCHED)
def the_log_is_a_link(place):
    """Lines would be appended to its target."""
    _replace(place.run / "log.txt", place.outside / "precious.txt")


@attack("resume", ends=UNTOUCHED)
def the_lock_is_a_link(place):
    """Its target would be emptied."""
    _replace(place.run / ".lock", place.outside / "precious.txt")


@attack("resume", "eval", ends=UNTOUCHED)
def the_config_is_a_link(place):
    """The content of its target would be shown in an error."""
    _replace(place.run / "config.yaml", "/etc/passwd")


@attack("resume", "eval", ends=UNTOUCHED)
def a_leftover_checkpoint_is_a_link(place):
    """Recovery would remove everything behind it."""
    (place.run / "checkpoints" / ".unfinished-step-000000000001").symlink_to(place.outside)


@attack("resume", ends=UNTOUCHED)
def a_checkpoint_is_a_link(place):
    """Pruning would remove everything behind it."""
    (place.run / "checkpoints" / "step-000000000999").symlink_to(place.outside)


@attack("resume", "eval", ends=UNTOUCHED)
def tensors_are_a_link(place):
    """A file outside would be read."""
    _replace(place.newest / "learner.safetensors", place.outside / "precious.bin")


@attack("play", ends=UNTOUCHED)
def videos_is_a_link(place):
    """A video would be written behind it."""
    (place.run / "videos").symlink_to(place.outside)


@attack("resume", ends=UNTOUCHED)
def a_link_that_leads_nowhere(place):
    """Writing through it would create a file."""
    (place.run / "diverged").symlink_to(place.outside / "new")


@attack("resume", "metrics", "report", ends=UNTOUCHED)
def a_link_with_a_newline_in_its_name(place):
    """The error must stay one line."""
    (place.run / "a\nerror: b\x1b[31m").symlink_to(place.outside)


@attack("resume", "metrics", "report", ends=UNTOUCHED)
def the_metrics_are_a_fifo(place):
    """Opening it would block indefinitely."""
    (place.run / "metrics.jsonl").unlink()
    os.mkfifo(place.run / "metrics.jsonl")


@attack("resume", "eval", ends=UNTOUCHED)
def a_document_is_a_fifo(place):
    (place.newest / "learner.json").unlink()
    os.mkfifo(place.newest / "learner.json")


@attack("resume", ends=UNTOUCHED)
def the_log_is_a_socket(place):
    (place.run / "log.txt").unlink()
    before = os.getcwd()
    os.chdir(place.run)  # the path of a socket has at most 107 characters
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind("log.txt")
    finally:
        os.chdir(before)


@attack("resume", ends=UNTOUCHED)
def folders_without_end(place):
    deep = place.run
    for _ in range(40):
        deep = deep / "d"
        deep.mkdir()


@attack("resume", ends=UNTOUCHED)
def the_lock_is_a_hard_link(place):
    """The file under its other name would be emptied."""
    (place.run / ".lock").unlink()
    (place.run / ".lock").hardlink_to(place.outside / "precious.txt")


@attack("resume", ends=UNHARMED)
def the_log_is_a_hard_link(place):
    """The file under its other name would grow."""
    (place.run / "log.txt").unlink()
    (place.run / "log.txt").hardlink_to(place.outside / "precious.txt")


@attack("start", ends=UNTOUCHED)
def a_file_of_an_export_is_a_link(place):
    file = next(place.export.glob("*.safetensors"))
    shutil.move(file, place.outside / file.name)
    file.symlink_to(place.outside / file.name)


@attack("start", ends=UNTOUCHED)
def the_manifest_of_an_export_is_a_link(place):
    _replace(place.export / "manifest.json", place.outside / "precious.json")


def _outputs(place):
    return [place.root / "scratch" / name for name in ("report.html", "rows.csv")]


@attack("report", "report csv", "csv", ends=UNHARMED)
def links_in_place_of_an_output(place):
    """In a stranger's folder, the name of the page may be taken already."""
    for file in _outputs(place):
        file.symlink_to(place.outside / "precious.txt")


@attack("report", "report csv", "csv", ends=UNHARMED)
def links_in_place_of_an_unfinished_output(place):
    for file in _outputs(place):
        file.with_name(f".unfinished-{file.name}").symlink_to(place.outside / "precious.txt")


@attack("report", "report csv", "csv", ends=UNHARMED)
def hard_links_in_place_of_an_output(place):
    for file in _outputs(place):
        os.link(place.outside / "precious.txt", file)


@attack("report", "csv")
def fifos_in_place_of_an_output(place):
    for file in _outputs(place):
        os.mkfifo(file)
