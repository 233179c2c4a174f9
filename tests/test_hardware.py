"""Free memory and disk, from simulated control groups and from this machine."""

import pytest

from starling.hardware import available_memory, find_room, peak_memory

GIB = 2**30


@pytest.fixture
def machine(tmp_path):
    """Folders like /proc with 8 GiB available and like /sys/fs/cgroup, to be filled by tests."""
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "groups").mkdir()
    (tmp_path / "proc" / "meminfo").write_text(f"MemTotal: {9 * 2**20} kB\nMemAvailable: {8 * 2**20} kB\n")
    return tmp_path


def available_in_group(machine, line, files):
    """Available memory of a process whose group is `line` of /proc/self/cgroup."""
    (machine / "proc" / "self" / "cgroup").write_text(f"3:cpu:/x\n{line}\n")
    for name, text in files.items():
        file = machine / "groups" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(str(text))
    return available_memory(machine / "proc", machine / "groups")


def group(folder, limit, used, cached=0, version=2):
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    stat = f"anon 1\ninactive_file {cached}\n"
    return {f"{folder}/{names[0]}": limit, f"{folder}/{names[1]}": used, f"{folder}/memory.stat": stat}


def test_without_a_limit_all_memory_of_the_machine_is_available(machine):
    assert available_in_group(machine, "0::/job", group("job", "max", GIB)) == 8 * GIB


def test_cgroup_v2_limit_minus_usage_without_page_cache(machine):
    assert available_in_group(machine, "0::/job", group("job", 3 * GIB, 2 * GIB, cached=GIB)) == 2 * GIB


def test_limit_of_a_parent_group_counts(machine):
    files = group("slice", 4 * GIB, 3 * GIB) | group("slice/job", "max", GIB)
    assert available_in_group(machine, "0::/slice/job", files) == GIB


def test_cgroup_v1_limit(machine):
    assert available_in_group(machine, "4:memory:/job", group("memory/job", 5 * GIB, GIB, version=1)) == 4 * GIB


def test_container_whose_own_group_is_the_root(machine):
    assert available_in_group(machine, "4:memory:/docker/abc", group("memory", 2 * GIB, GIB, version=1)) == GIB


def test_values_of_this_machine_are_plausible(tmp_path):
    room = find_room(tmp_path / "not" / "made" / "yet")
    assert 0 < room.memory < 2**50
    assert 0 < room.disk < 2**60
    assert 10 * 2**20 < peak_memory() < 2**40
