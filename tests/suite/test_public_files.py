"""Files for GitHub and its visitors: workflows, issue forms, citation, and the indexes of benchmarks and examples."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
TEMPLATES = GITHUB / "ISSUE_TEMPLATE"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.y*ml"))
FORMS = sorted(path for path in TEMPLATES.glob("*.y*ml") if path.stem != "config")
ELEMENTS = {"markdown", "input", "textarea", "dropdown", "checkboxes"}


def read(path):
    return yaml.safe_load(path.read_text())


def links(readme):
    """Relative paths that a page links to."""
    return {path for path in re.findall(r"\]\(([^)#]+)\)", readme.read_text()) if "://" not in path}


def make_targets(text):
    """Targets in commands of the form `make TARGET`."""
    return set(re.findall(r"(?:^|`)make ([\w-]+)", text, re.MULTILINE))


def targets():
    """Targets that the Makefile defines."""
    return set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_workflows_and_issue_forms_exist():
    assert [path.name for path in WORKFLOWS] == ["test.yml"]
    assert [path.name for path in FORMS] == ["bug.yml", "feature.yml"]
    assert (GITHUB / "PULL_REQUEST_TEMPLATE.md").read_text().strip()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_have_the_required_keys(path):
    workflow = read(path)
    triggers = workflow.get("on", workflow.get(True))  # YAML 1.1 parses the bare key `on` as true
    assert set(triggers) == {"push", "pull_request"}
    assert workflow["jobs"]
    for name, job in workflow["jobs"].items():
        assert job["runs-on"], name
        assert job["steps"], name
        for step in job["steps"]:
            assert len({"uses", "run"} & set(step)) == 1, f"{name}: {step}"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_have_read_permission_only_and_a_time_limit(path):
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert "permissions" not in job, name
        assert 0 < job["timeout-minutes"] <= 120, name


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_call_existing_make_targets(path):
    steps = [step for job in read(path)["jobs"].values() for step in job["steps"]]
    called = set().union(*(make_targets(step.get("run", "")) for step in steps))
    assert called == {"test", "quick"}
    assert called <= targets()


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_issue_forms_have_the_required_keys(path):
    form = read(path)
    assert isinstance(form["name"], str)
    assert isinstance(form["description"], str)
    assert {element["type"] for element in form["body"]} <= ELEMENTS
    fields = [element for element in form["body"] if element["type"] != "markdown"]
    assert fields
    for element in form["body"]:
        assert element["attributes"]["value" if element["type"] == "markdown" else "label"]
        assert ("options" in element["attributes"]) == (element["type"] in {"dropdown", "checkboxes"})
    for names in ([field["id"] for field in fields], [field["attributes"]["label"] for field in fields]):
        assert len(names) == len(set(names)), "ids and labels are unique"


def test_bug_form_asks_for_what_reproduces_the_bug():
    ids = {element.get("id") for element in read(TEMPLATES / "bug.yml")["body"]}
    assert {"command", "config", "log", "version", "machine"} <= ids


def test_issue_chooser_is_configured():
    chooser = read(TEMPLATES / "config.yml")
    assert set(chooser) <= {"blank_issues_enabled", "contact_links"}
    assert isinstance(chooser["blank_issues_enabled"], bool)
    for link in chooser.get("contact_links", []):
        assert set(link) == {"name", "url", "about"}


def test_citation_has_the_current_version_and_license():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = read(ROOT / "CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["version"] == project["version"]
    assert citation["license"] == project["license"]


@pytest.mark.parametrize("folder", ["benchmarks", "examples"])
def test_index_links_every_file_and_no_missing_one(folder):
    here = ROOT / folder
    files = [path for path in here.rglob("*") if path.suffix in {".py", ".yaml"} and "__pycache__" not in path.parts]
    linked = links(here / "README.md")
    assert files
    assert {str(path.relative_to(here)) for path in files} - linked == set(), "not in the index"
    assert {path for path in linked if not (here / path).exists()} == set(), "linked but missing"


@pytest.mark.parametrize("folder", ["benchmarks", "examples"])
def test_commands_in_an_index_use_existing_files_and_targets(folder):
    text = (ROOT / folder / "README.md").read_text()
    named = set(re.findall(rf"\b{folder}/[\w/-]+\.(?:py|yaml)", text))
    assert named
    assert {path for path in named if not (ROOT / path).exists()} == set()
    assert make_targets(text) <= targets()
