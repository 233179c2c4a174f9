"""Every option of every command is used in some test, as a user would type it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from starling.cli.main import app

TESTS = Path(__file__).parents[1]


def options(command, path=()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the words of every command with each of its options."""
    for parameter in command.params:
        if parameter.param_type_name == "option":
            yield from ((path, name) for name in (*parameter.opts, *parameter.secondary_opts))
    for name, below in getattr(command, "commands", {}).items():
        yield from options(below, (*path, name))


class CommandLines(ast.NodeVisitor):
    """The command lines in one file: the words in one call or list, plus those that names and functions contribute."""

    def __init__(self, source: str) -> None:
        module = ast.parse(source)
        self._lists = {
            target.id: node.value
            for node in ast.walk(module)
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        self._functions = {node.name: node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)}
        self.lines: list[set[str]] = []
        self.visit(module)

    def visit_Call(self, node: ast.Call) -> None:
        self.lines.append(self._words(node))
        self.generic_visit(node)

    def visit_List(self, node: ast.List) -> None:
        self.lines.append(self._words(node))
        self.generic_visit(node)

    def _words(self, node: ast.AST, depth: int = 4) -> set[str]:
        """The words that a node contributes to the command line around it."""
        match node:
            case ast.Constant(value=str(text)):
                return {text.partition("=")[0]}
            case ast.JoinedStr(values=[first, *_]) | ast.Starred(value=first):
                return self._words(first, depth)
            case ast.Name(id=name) if name in self._lists and depth:
                return self._words(self._lists[name], depth - 1)
            case ast.List(elts=elements):
                return set().union(*(self._words(one, depth) for one in elements if not isinstance(one, ast.List)))
            case ast.BinOp(left=left, right=right):
                return self._words(left, depth) | self._words(right, depth)
            case ast.Call(func=function, args=arguments):
                words = set().union(*(self._words(one, depth) for one in arguments if not isinstance(one, ast.List)))
                if isinstance(function, ast.Name) and function.id in self._functions and depth:
                    body = ast.walk(self._functions[function.id])
                    words = words.union(*(self._words(one, 0) for one in body if isinstance(one, ast.Call | ast.List)))
                return words
        return set()


@pytest.fixture(scope="module")
def lines():
    return [line for file in TESTS.rglob("test_*.py") for line in CommandLines(file.read_text()).lines]


@pytest.mark.parametrize(("command", "option"), [*options(typer.main.get_command(app))], ids=str)
def test_every_option_is_used_in_a_test(lines, command, option):
    assert any({*command, option} <= line for line in lines), (
        f"no test types {' '.join(['starling', *command, option])}: write one that shows what the option does"
    )


@pytest.mark.parametrize(
    ("source", "counts"),
    [
        ('run("eval", folder, "--seed", 3)', True),
        ('subprocess.run([sys.executable, "-m", "starling", "eval", "--seed", "3"])', True),
        ('app(["eval", f"--seed={seed}"])', True),
        ('MORE = ["--seed", 3]\nrun("eval", *MORE)', True),
        ('def evaluate(*more):\n    return run("eval", *more)\nevaluate("--seed", 3)', True),
        ('run("eval", folder)\nrun("play", folder, "--seed", 3)', False),
        ('[["eval", folder], ["play", folder, "--seed", 3]]', False),
        ('run(["eval", folder], ["play", folder, "--seed", 3])', False),
        ("play(folder, seed=3)", False),
    ],
)
def test_option_counts_only_in_the_same_command_line_as_its_command(source, counts):
    assert any({"eval", "--seed"} <= line for line in CommandLines(source).lines) is counts
