"""Exported replays that `starling replay export` would not write, with valid checksums."""

import json
import os
import pickle

import numpy as np
from attacks_checkpoints import DEEP, DIGITS, Bomb
from corpus import attack, change_export, change_header, rewrite_export


def _change_manifest(place, change):
    file = place.export / "manifest.json"
    manifest = json.loads(file.read_text())
    change(manifest)
    file.write_text(json.dumps(manifest))


def _part(manifest):
    return manifest["tables"]["replay"]["parts"][0]


def _file(place):
    return place.export / _part(json.loads((place.export / "manifest.json").read_text()))["file"]


@attack("start")
def observations_that_are_nan(place):
    change_export(place.export, lambda columns: columns["obs"].fill(np.nan))


@attack("start")
def rewards_that_are_infinite(place):
    change_export(place.export, lambda columns: columns["rewards/extrinsic"].fill(np.inf))


@attack("start")
def everything_is_nan(place):
    def change(columns):
        for column in columns.values():
            if column.dtype.kind == "f":
                column.fill(np.nan)

    change_export(place.export, change)


@attack("start")
def negative_priorities(place):
    change_export(place.export, lambda columns: columns["priority"].fill(-1.0))


@attack("start")
def invalid_actions(place):
    change_export(place.export, lambda columns: columns["action"].fill(10**6))


@attack("start")
def a_missing_column(place):
    change_export(place.export, lambda columns: columns.pop("action"))


@attack("start")
def a_column_of_another_length(place):
    change_export(place.export, lambda columns: columns.update(action=columns["action"][:3]))


@attack("start")
def a_column_of_another_type(place):
    change_export(place.export, lambda columns: columns.update(obs=columns["obs"].astype(np.float64)))


@attack("start")
def a_column_of_another_shape(place):
    change_export(place.export, lambda columns: columns.update(obs=columns["obs"][..., None]))


@attack("start")
def a_scalar_where_steps_should_be(place):
    change_export(place.export, lambda columns: columns.update(priority=np.array(1.0)))


@attack("start")
def no_steps_at_all(place):
    change_export(place.export, lambda c: c.update({name: column[:0] for name, column in c.items()}))


@attack("start")
def episodes_that_begin_within_episodes(place):
    change_export(place.export, lambda columns: columns["first"].fill(True))


@attack("start")
def a_pickle_for_steps(place):
    rewrite_export(place.export, pickle.dumps(Bomb()))


@attack("start")
def bfloat16_steps(place):
    def edit(header):
        header["obs"]["dtype"] = "BF16"

    rewrite_export(place.export, change_header(_file(place), edit))


@attack("start")
def an_impossible_shape_of_steps(place):
    def edit(header):
        header["obs"]["shape"] = [2**62, 4]

    rewrite_export(place.export, change_header(_file(place), edit))


@attack("start")
def booleans_of_value_7(place):
    content = bytearray(_file(place).read_bytes())
    end = 8 + int.from_bytes(content[:8], "little")
    begin, _ = json.loads(content[8:end])["valid"]["data_offsets"]
    content[end + begin] = 7
    rewrite_export(place.export, bytes(content))


@attack("start")
def a_file_that_leads_outside(place):
    _change_manifest(place, lambda manifest: _part(manifest).update(file="../outside/precious.safetensors"))


@attack("start")
def an_absolute_file(place):
    _change_manifest(place, lambda manifest: _part(manifest).update(file=str(place.outside / "x.safetensors")))


@attack("start")
def the_same_file_many_times(place):
    def change(manifest):
        manifest["tables"]["replay"]["parts"] = [_part(manifest)] * 1000

    _change_manifest(place, change)


@attack("start")
def a_huge_number_of_steps(place):
    _change_manifest(place, lambda manifest: _part(manifest).update(steps=10**15))


@attack("start")
def a_file_of_a_terabyte(place):
    """A sparse file takes no space."""
    os.truncate(_file(place), 2**40)
    _change_manifest(place, lambda manifest: _part(manifest).update(bytes=2**40))


@attack("start")
def negative_steps(place):
    _change_manifest(place, lambda manifest: _part(manifest).update(steps=-1))


@attack("start")
def the_object_dtype(place):
    _change_manifest(place, lambda manifest: manifest["columns"]["obs"].update(dtype="O"))


@attack("start")
def an_unknown_dtype(place):
    _change_manifest(place, lambda manifest: manifest["columns"]["obs"].update(dtype="nosuch"))


@attack("start")
def an_env_with_control_characters(place):
    _change_manifest(place, lambda manifest: manifest.update(action_space="Discrete(2)\nerror: \x1b[31m"))


@attack("start")
def a_manifest_of_an_export_that_is_deep(place):
    (place.export / "manifest.json").write_text("[" * DEEP + "]" * DEEP)


@attack("start")
def a_manifest_of_an_export_with_a_long_integer(place):
    text = (place.export / "manifest.json").read_text()
    (place.export / "manifest.json").write_text(
        text.replace('"format":', '"env_steps": ' + "9" * DIGITS + ', "format":')
    )


@attack("start")
def a_format_of_four_thousand_digits(place):
    file = place.export / "manifest.json"
    file.write_text(file.read_text().replace('"format": 1', f'"format": {"9" * 4000}'))


@attack("start")
def a_manifest_of_an_export_that_is_not_utf8(place):
    (place.export / "manifest.json").write_bytes(b'{"format": "\xff"}')


@attack("start")
def tables_that_are_a_list(place):
    _change_manifest(place, lambda manifest: manifest.update(tables=[1]))


@attack("start")
def a_missing_table(place):
    _change_manifest(place, lambda manifest: manifest.update(tables={"a\nb": manifest["tables"]["replay"]}))
