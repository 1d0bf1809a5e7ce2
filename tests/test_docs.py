"""The commands, options, Python names, settings, make targets and links in README.md and docs/ exist."""

import ast
import importlib
import importlib.util
import inspect
import re
import shlex
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path

import pytest
from typer.main import get_command

import penstock
from penstock import options as options_module
from penstock.cli.main import make_app
from penstock.config import GROUPS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "examples" / "README.md", *(ROOT / "docs").glob("*.md")]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAME = re.compile(r"\bpenstock(?:\.[A-Za-z_]\w*)+")
NOT_IMPORTED = "penstock.watcher.callbacks"  # imports frameworks, which takes seconds

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def code_blocks(page, *languages):
    """Return the fenced code blocks in these languages; "" stands for blocks without one."""
    return [text for language, text in FENCED.findall(page.read_text()) if language in languages]


def inline_code(page):
    return INLINE.findall(FENCED.sub("", page.read_text()))


def written_commands(page):
    """Return the commands of penstock in code blocks, with continued lines joined, and in the text."""
    lines = "\n".join(code_blocks(page, "", "sh", "bash")).replace("\\\n", " ").splitlines()
    candidates = [line.removeprefix("$ ") for line in lines] + inline_code(page)
    return [text.replace("…", "") for text in candidates if re.match(r"penstock [a-z]", text)]


@pages
def test_commands_and_their_options_exist(page):
    for text in written_commands(page):
        for words in alternatives(shlex.split(text, comments=True)[1:]):
            problem = problem_with(words)
            assert problem is None, f"{text}: {problem}"


def alternatives(words):
    """Return the commands that a command with alternatives stands for: `shards ls|index` is two commands."""
    joined = next((word for word in words if "|" in word and word.replace("|", "").isalpha()), None)
    if joined is None:
        return [words]
    return [[choice if word == joined else word for word in words] for choice in joined.split("|")]


def problem_with(words):
    """Return what the command's own parser refuses, or None. Missing arguments are allowed, since texts omit them."""
    command, words = get_command(make_app()), list(words)
    while hasattr(command, "commands") and words:
        if words[0] not in command.commands:
            return f"there is no command {words[0]}"
        command = command.commands[words.pop(0)]
    context = command.context_class(command, **command.context_settings)
    words = [word for at, word in enumerate(words) if word != "--ray" or at + 1 < len(words)]  # its value is optional
    try:
        command.make_parser(context).parse_args(words)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def test_the_check_finds_commands_and_options_that_do_not_exist():
    assert problem_with(["shards", "polish"]) == "there is no command polish"
    assert "--colour" in problem_with(["shards", "ls", "x/", "--colour"])
    assert problem_with(["run", "-o", "run.jsonl", "train.py", "--colour"]) is None


@pages
def test_python_names_of_the_package_exist(page):
    for text in [*code_blocks(page, "python"), *inline_code(page)]:
        for name in NAME.findall(text):
            assert exists(name), name


@cache
def exists(name):
    """Return whether this is the name of a module or of an attribute of a module."""
    if name.startswith(NOT_IMPORTED):
        return importlib.util.find_spec(name) is not None
    module, _, rest = name.partition(".")
    found = importlib.import_module(module)
    for part in rest.split("."):
        try:
            found = getattr(found, part, None) or importlib.import_module(f"{found.__name__}.{part}")
        except (ImportError, AttributeError):
            return False
    return True


def test_the_check_finds_names_that_do_not_exist():
    assert exists("penstock.Loader.from_config")
    assert not exists("penstock.Lodaer")


@pages
def test_python_examples_are_valid_and_call_existing_functions_with_existing_parameters(page):
    for text in code_blocks(page, "python"):
        tree = ast.parse(text.replace("…", "..."))
        objects = {"penstock": penstock}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("penstock"):
                for alias in node.names:
                    if not node.module.startswith(NOT_IMPORTED):
                        objects[alias.name] = getattr(importlib.import_module(node.module), alias.name)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                check_call(node, objects)


def check_call(node, objects):
    """Check that the keyword arguments of a call are parameters of the function, if that is one of `objects`."""
    name, *attributes = ast.unparse(node.func).split(".")
    if name not in objects:
        return
    function = objects[name]
    for part in attributes:
        function = getattr(function, part)
    parameters = inspect.signature(function).parameters
    if not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        unknown = {each.arg for each in node.keywords if each.arg} - set(parameters)
        assert not unknown, f"{ast.unparse(node.func)}: {unknown}"


@pages
def test_links_have_existing_targets(page):
    for link in LINK.findall(FENCED.sub("", page.read_text())):
        path, _, anchor = link.partition("#")
        if path.startswith(("https://", "http://")):
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@cache
def anchors(page):
    """Return the anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pages
def test_make_targets_exist(page):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    lines = "\n".join(code_blocks(page, "", "sh", "bash")).splitlines()
    for text in [*lines, *inline_code(page)]:
        if re.fullmatch(r"make [a-z-]+( ARGS=.*)?( +#.*)?", text):
            assert text.split()[1] in targets, text


def test_the_page_on_the_loader_lists_every_setting_with_its_default():
    section = (ROOT / "docs" / "loader.md").read_text().partition("## Every setting")[2].partition("\n## ")[0]
    written = {}
    for names, default in re.findall(r"^\| (`[^|]+`) \| (?:`([^|]+)`)? *\|", section, re.MULTILINE):
        written |= dict.fromkeys(INLINE.findall(names), ast.literal_eval(default) if default else MISSING)
    parameters = inspect.signature(penstock.Loader).parameters.values()
    settings = {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}
    options = {f"{group}.{each.name}": each.default for group, kind in GROUPS.items() for each in fields(kind)}
    assert written == settings | options


def test_the_docstring_of_the_loader_describes_every_parameter():
    described = re.findall(r"^ {8}(\w+) \(", penstock.Loader.__doc__.partition("Args:")[2], re.MULTILINE)
    assert described == list(inspect.signature(penstock.Loader).parameters)


def test_every_option_of_a_group_has_a_docstring():
    tree = ast.parse(inspect.getsource(options_module))
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name in {kind.__name__ for kind in GROUPS.values()}:
            body = [item for item in node.body if isinstance(item, ast.AnnAssign | ast.Expr)][1:]
            kinds = [type(item) for item in body]
            assert kinds == [ast.AnnAssign, ast.Expr] * (len(kinds) // 2), node.name
