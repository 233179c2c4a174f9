"""The recipes in deploy/, checked without Kubernetes or Slurm; tests/runtime runs two-nodes.sh."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
SRUN = """#!/bin/bash
# Runs here what Slurm would run on a node.
while [[ "$1" == --* ]]; do shift; done
exec "$@"
"""
RECORD = '#!/bin/bash\necho "$(basename "$0") $*" >> "$RECORD"\n'


@pytest.mark.parametrize("script", sorted(DEPLOY.glob("*.sh")), ids=lambda path: path.name)
def test_scripts_are_valid_bash(script):
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert "set -euo pipefail" in script.read_text()


def test_kubernetes_cluster_requires_a_token_and_its_job_uses_it():
    documents = {part["kind"]: part for part in yaml.safe_load_all((DEPLOY / "kuberay.yaml").read_text())}
    cluster, job = documents["RayCluster"], documents["Job"]
    assert cluster["apiVersion"] == "ray.io/v1"
    assert cluster["spec"]["authOptions"] == {"mode": "token"}
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert any(cluster["metadata"]["name"] in word for word in container["args"])
    claims = {volume["persistentVolumeClaim"]["claimName"] for volume in job["spec"]["template"]["spec"]["volumes"]}
    assert claims == {documents["PersistentVolumeClaim"]["metadata"]["name"]}


@pytest.mark.parametrize("resubmitted", [False, True])
def test_slurm_job_trains_and_resumes_when_resubmitted(tmp_path, resubmitted):
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in {
        "srun": SRUN,
        "scontrol": "#!/bin/bash\necho first\necho second\n",
        "sleep": "#!/bin/bash\n",
        **dict.fromkeys(("ray", "starling"), RECORD),
    }.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    runs = tmp_path / "runs"
    if resubmitted:
        (runs / "pong").mkdir(parents=True)
        (runs / "pong" / "config.yaml").touch()
    slurm = {"SLURM_JOB_NODELIST": "x", "SLURM_CPUS_PER_TASK": "4", "SLURM_JOB_NUM_NODES": "2"}
    env = {"PATH": f"{tools}:{os.environ['PATH']}", "RECORD": str(tmp_path / "record"), "HOME": str(tmp_path)}
    command = ["bash", str(DEPLOY / "slurm.sh"), "impala-pong", "actors=30", "run=pong"]
    # The pipe ends with the last process of the job, which may be a node.
    subprocess.run(command, env=slurm | env | {"RUNS": str(runs)}, check=True, stdout=subprocess.PIPE)
    lines = (tmp_path / "record").read_text().splitlines()
    assert sum(line.startswith("ray start --head") for line in lines) == 1
    assert sum(line.startswith("ray start --address=") for line in lines) == 1
    (driver,) = [line for line in lines if line.startswith("starling ")]
    if resubmitted:
        assert driver == f"starling resume {runs}/pong"
    else:
        assert driver == f"starling train impala-pong actors=30 run=pong runtime=ray ray.address=auto --runs {runs}"
    assert not list(tmp_path.glob(".starling-job-*")), "the token is gone with the job"


def instructions(dockerfile):
    """The instructions of a Dockerfile, each a list of words; a line that ends in a backslash goes on."""
    lines = [line for line in dockerfile.read_text().splitlines() if line and not line.startswith("#")]
    return [line.split() for line in "\n".join(lines).replace("\\\n", " ").splitlines()]


def test_image_has_a_variant_for_cpus_and_one_for_gpus():
    found = instructions(ROOT / "Dockerfile")
    stages = {words[3]: words[1] for words in found if words[0] == "FROM" and len(words) == 4}
    assert {"cpu", "gpu"} <= set(stages)
    assert ["ARG", "VARIANT=cpu"] in found
    assert [words for words in found if words[0] == "FROM"][-1] == ["FROM", "${VARIANT}"]


def test_image_copies_what_installation_needs_and_runs_targets_that_exist():
    found = instructions(ROOT / "Dockerfile")
    copied = [word for words in found if words[0] == "COPY" for word in words[1:-1] if not word.startswith("--")]
    assert all((ROOT / path).exists() for path in copied)
    first = next(words for words in found if words[0] == "COPY")
    rule = re.search(r"^\.venv/installed: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    assert {"Makefile", *rule.split()} <= set(first)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {project["readme"], *project["license-files"]} <= set(first)
    assert ["RUN", "make", "install"] in [words[:3] for words in found]
    assert found[-1] == ["CMD", '["make",', '"train"]']
    assert re.search(r"^train:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_image_runs_as_an_ordinary_user_with_a_python_that_is_new_enough():
    found = instructions(ROOT / "Dockerfile")
    assert ["USER", "1000:1000"] in found
    version = re.match(r"python:(\d+)\.(\d+)", next(words[1] for words in found if words[0] == "FROM"))
    assert (int(version[1]), int(version[2])) >= (3, 11)


def test_image_leaves_out_what_git_ignores():
    """Apart from comments and leading slashes, of which Docker has none; `**/` is how it says "anywhere"."""

    def patterns(name):
        lines = (line.strip("/").removeprefix("**/") for line in (ROOT / name).read_text().splitlines())
        return {line for line in lines if line and not line.startswith("#")}

    assert patterns(".dockerignore") == patterns(".gitignore") | {".git"}
