"""The recipes in deploy/, checked without Kubernetes or Slurm; tests/runtime runs two-nodes.sh."""

import os
import subprocess
from pathlib import Path

import pytest
import yaml

DEPLOY = Path(__file__).parents[1] / "deploy"
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
    subprocess.run(command, env=slurm | env | {"RUNS": str(runs)}, check=True)
    lines = (tmp_path / "record").read_text().splitlines()
    assert sum(line.startswith("ray start --head") for line in lines) == 1
    assert sum(line.startswith("ray start --address=") for line in lines) == 1
    (driver,) = [line for line in lines if line.startswith("starling ")]
    if resubmitted:
        assert driver == f"starling resume {runs}/pong"
    else:
        assert driver == f"starling train impala-pong actors=30 run=pong runtime=ray ray.address=auto --runs {runs}"
    assert not list(tmp_path.glob(".starling-job-*")), "the token is gone with the job"
