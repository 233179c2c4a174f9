"""Pages of the documentation: their code is that of the files they show, and their links lead somewhere."""

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import starling
import starling.ops
from starling import tree

ROOT = Path(__file__).parent.parent
OPS = (ROOT / "docs" / "ops.md").read_text()
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "examples" / "README.md", *(ROOT / "docs").glob("*.md")]


def blocks(page, language):
    """The code blocks of a page in a language; "" is plain text."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def test_code_of_the_page_on_algorithms_is_that_of_the_example_and_its_test():
    """Apart from indentation and line breaks: the page shows methods without their class."""
    page = (ROOT / "docs" / "own-algorithm.md").read_text()
    sources = ["".join((ROOT / path).read_text().split()) for path in ("examples/td3.py", "tests/test_td3.py")]
    shown = blocks(page, "python")
    assert len(shown) > 10
    for block in shown:
        assert any("".join(block.split()) in source for source in sources), block


def test_changes_of_the_tutorial_fit_the_example_and_make_an_algorithm_that_learns(tmp_path, monkeypatch):
    source = (ROOT / "examples" / "dqn.py").read_text()
    for change in blocks((ROOT / "docs" / "tutorial.md").read_text(), "diff"):
        before, after = ("".join(f"{line[1:]}\n" for line in change.splitlines() if line[0] == sign) for sign in "-+")
        assert source.count(before) == 1, before
        source = source.replace(before, after)
    (tmp_path / "double_dqn.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    changed = importlib.import_module("double_dqn")
    settings = ["algo.learning_starts=64", "stop.env_steps=200", "stop.return=null", "threads=1", "log.every=50"]
    result = starling.train(changed.CARTPOLE, settings, runs=tmp_path)
    assert result.env_steps >= 200
    assert "loss/q_values" in (result.folder / "metrics.jsonl").read_text()


def public_ops():
    """Names of all public functions and classes of `starling.ops`, with their module."""
    for module in pkgutil.iter_modules(starling.ops.__path__):
        found = importlib.import_module(f"starling.ops.{module.name}")
        for name, value in vars(found).items():
            ours = inspect.isfunction(value) or inspect.isclass(value)
            if ours and value.__module__ == found.__name__ and not name.startswith("_"):
                yield f"{module.name}.{name}"


def test_the_page_on_ops_lists_every_public_function_and_no_other():
    functions = OPS.partition("## Functions")[2].partition("## Networks and trees")[0]
    first_cells = re.findall(r"^\| (`.*?`) \|", functions, re.MULTILINE)
    listed = [name for cell in first_cells for name in re.findall(r"`([\w.]+)`", cell)]
    assert sorted(listed) == sorted(public_ops())


def test_every_public_function_of_ops_has_a_docstring():
    for name in public_ops():
        module, _, attribute = name.partition(".")
        assert inspect.getdoc(getattr(importlib.import_module(f"starling.ops.{module}"), attribute)), name


def test_the_example_of_the_page_on_ops_prints_what_the_page_says(capsys):
    (code,) = blocks(OPS, "python")
    printed = OPS.partition(code)[2].split("```\n")[2]
    exec(code, {})
    assert capsys.readouterr().out == printed


def test_builders_and_tree_functions_on_the_page_on_ops_exist_with_these_arguments():
    named = re.findall(r"^\| `(starling\.[\w.]+)\((.*?)\)` \|", OPS, re.MULTILINE)
    assert len(named) == 6
    for path, arguments in named:
        module, _, name = path.rpartition(".")
        signature = inspect.signature(getattr(importlib.import_module(module), name))
        assert len(arguments.split(", ")) <= len(signature.parameters), path
    for name, arguments in re.findall(r"`tree\.(\w+)\((.*?)\)`", OPS):
        parameters = inspect.signature(getattr(tree, name)).parameters
        assert [argument.lstrip("*") for argument in arguments.split(", ")] == list(parameters)[
            : len(arguments.split(", "))
        ], name


def anchors(page):
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_exist(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for path, anchor in re.findall(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)", text):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{path}#{anchor}"
