"""README and docs/ speak of commands, options, names, settings, targets and pages that there are."""

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
APART = "penstock.watcher.callbacks"  # needs frameworks that take seconds to import

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def blocks(page, *languages):
    return [text for language, text in FENCED.findall(page.read_text()) if language in languages]


def inline(page):
    return INLINE.findall(FENCED.sub("", page.read_text()))


def written_commands(page):
    """Lines of shell, with what continues them, and commands in running text."""
    lines = "\n".join(blocks(page, "", "sh", "bash")).replace("\\\n", " ").splitlines()
    said = [line.removeprefix("$ ") for line in lines] + inline(page)
    return [text.replace("…", "") for text in said if re.match(r"penstock [a-z]", text)]


@pages
def test_commands_and_their_options_are_those_of_the_program(page):
    for text in written_commands(page):
        for words in alternatives(shlex.split(text, comments=True)[1:]):
            refused = unknown(words)
            assert refused is None, f"{text}: {refused}"


def alternatives(words):
    """`shards ls|index` is two commands."""
    several = next((word for word in words if "|" in word and word.replace("|", "").isalpha()), None)
    if several is None:
        return [words]
    return [[one if word == several else word for word in words] for one in several.split("|")]


def unknown(words):
    """What the program's own parser says; that arguments are missing is nothing in a text."""
    command, words = get_command(make_app()), list(words)
    while hasattr(command, "commands") and words:
        if words[0] not in command.commands:
            return f"there is no command {words[0]}"
        command = command.commands[words.pop(0)]
    context = command.context_class(command, **command.context_settings)
    words = [word for at, word in enumerate(words) if word != "--ray" or at + 1 < len(words)]  # may stand alone
    try:
        command.make_parser(context).parse_args(words)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def test_what_is_no_command_is_noticed():
    assert unknown(["shards", "polish"]) == "there is no command polish"
    assert "--colour" in unknown(["shards", "ls", "x/", "--colour"])
    assert unknown(["run", "-o", "run.jsonl", "train.py", "--colour"]) is None


@pages
def test_names_of_the_package_are_there(page):
    for text in [*blocks(page, "python"), *inline(page)]:
        for name in NAME.findall(text):
            assert there(name), name


@cache
def there(name):
    """Whether a module, or what a module has, is called that."""
    if name.startswith(APART):
        return importlib.util.find_spec(name) is not None
    module, _, rest = name.partition(".")
    found = importlib.import_module(module)
    for part in rest.split("."):
        try:
            found = getattr(found, part, None) or importlib.import_module(f"{found.__name__}.{part}")
        except (ImportError, AttributeError):
            return False
    return True


def test_what_is_no_name_is_noticed():
    assert there("penstock.Loader.from_config")
    assert not there("penstock.Lodaer")


@pages
def test_examples_in_python_can_be_read_and_call_what_there_is(page):
    for text in blocks(page, "python"):
        tree = ast.parse(text.replace("…", "..."))
        known = {"penstock": penstock}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("penstock"):
                for alias in node.names:
                    if not node.module.startswith(APART):
                        known[alias.name] = getattr(importlib.import_module(node.module), alias.name)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                check_call(node, known)


def check_call(node, known):
    """That each argument which is given by name has that name."""
    called = ast.unparse(node.func).split(".")
    if called[0] not in known:
        return
    function = known[called[0]]
    for part in called[1:]:
        function = getattr(function, part)
    parameters = inspect.signature(function).parameters
    if not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        unknown = {each.arg for each in node.keywords if each.arg} - set(parameters)
        assert not unknown, f"{'.'.join(called)}: {unknown}"


@pages
def test_links_lead_somewhere(page):
    for link in LINK.findall(FENCED.sub("", page.read_text())):
        path, _, anchor = link.partition("#")
        if path.startswith(("https://", "http://")):
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@cache
def anchors(page):
    """As GitHub makes them of headings."""
    heads = re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pages
def test_make_has_the_targets_that_are_named(page):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    lines = "\n".join(blocks(page, "", "sh", "bash")).splitlines()
    for text in [*lines, *inline(page)]:
        if re.fullmatch(r"make [a-z-]+( ARGS=.*)?( +#.*)?", text):
            assert text.split()[1] in targets, text


def test_the_page_on_the_loader_has_every_setting_with_its_default():
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
