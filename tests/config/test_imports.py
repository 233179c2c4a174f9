"""The import paths in a configuration, listed without importing anything."""

import pytest

from starling.config.imports import Import, imports_of


@pytest.mark.parametrize(
    ("values", "paths"),
    [
        ({"env": {"id": "os:system"}}, ["os:system"]),
        ({"env": {"id": "module:Name-v0"}}, ["module:Name-v0"]),
        ({"env": {"id": "my-module:1Name-v0"}}, ["my-module:1Name-v0"]),
        ({"env": {"id": " os :x"}}, [" os :x"]),
        (
            {"algo": {"name": "a.b:C"}, "net": {"torso": {"kind": "t:T"}, "core": {"kind": "c:C"}}},
            ["a.b:C", "t:T", "c:C"],
        ),
        ({"env": {"wrappers": [{"name": "TimeLimit"}, {"name": "w:W"}]}}, ["w:W"]),
        ({"env": {"wrappers": [{"name": "RecordVideo"}]}}, ["gymnasium.wrappers:RecordVideo"]),
        (
            {"env": {"wrappers": {"TimeLimit": {}, "w:W": None, "RecordVideo": {}}}},
            ["w:W", "gymnasium.wrappers:RecordVideo"],
        ),
        ({"curiosity": [{"kind": "own:Novelty", "torso": {"kind": "t:T"}}]}, ["own:Novelty", "t:T"]),
        ({"env": {"id": "Old-v0", "args": {"env_id": ["pkg.sub:Thing"]}}}, ["pkg.sub:Thing"]),
        ({"device": "cuda:1", "ray": {"address": "ray://head:10001"}, "note": "http://host/x"}, []),
        ({"env": {"id": "ALE/Pong-v5", "args": {"time": "10:30"}}, "algo": {"name": "ppo"}, 3: None}, []),
    ],
)
def test_every_import_path_is_listed(values, paths):
    assert [each.path for each in imports_of(values)] == paths


def test_each_import_path_has_its_key():
    assert imports_of({"env": {"wrappers": [{"name": "w:W"}]}}) == [Import("env.wrappers.0.name", "w:W")]


def test_wrappers_by_name_are_listed_even_if_their_section_occurs_twice():
    shared = {"os:system": {}}  # as YAML's aliases make it
    values = {"env": {"args": {"anything": shared}, "wrappers": shared}}
    assert imports_of(values) == [Import("env.wrappers", "os:system")]


def test_recursive_or_repeated_sections_are_listed_in_bounded_time():
    values = {"env": {"id": "a:b"}}
    values["env"]["args"] = values
    for _ in range(64):
        values = {"one": values, "other": values}
    assert [each.path for each in imports_of(values)] == ["a:b"]


@pytest.mark.parametrize(
    ("allow", "is_allowed"),
    [("pkg", True), ("pkg.sub", True), ("pkg.sub:Thing", True), ("pk", False), ("pkg.su", False), ("", False)],
)
def test_allow_accepts_packages_modules_and_single_paths(allow, is_allowed):
    assert Import("env.id", "pkg.sub:Thing").is_allowed([allow]) is is_allowed
    assert not Import("env.id", "package:Thing").is_allowed([allow])


@pytest.mark.parametrize(
    ("key", "path", "allow"),
    [
        ("env.id", "pkg.sub:Thing", "pkg"),
        ("env.id", "${env:NAME}", "${env:NAME}"),
        ("env.wrappers.0.name", "gymnasium.wrappers:RecordVideo", "gymnasium.wrappers:RecordVideo"),
        ("ray.address", "host:6379", "host:6379"),
    ],
)
def test_suggested_allow_covers_the_import_and_at_most_its_package(key, path, allow):
    assert Import(key, path).word == allow
    assert Import(key, path).is_allowed([allow])
