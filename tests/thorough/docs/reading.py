"""Reads what cannot be run: a shell's syntax, the options of our commands by their parser, plans and specs."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import io
import json
import re
import shlex
import subprocess

import yaml

from compiler.errors import CompileError
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.spec.schema import DOCUMENTS, published_schema
from pockfarm import cli
from tests.thorough.docs.snippets import Snippet

LANGUAGES = frozenset({"bash", "python", "yaml", "json", "toml", "ini", "c", "cmake", "text", "mermaid", "dockerfile"})
PARSE = {"plan": SparsePlan.parse, "spec": TrainingSpec.parse}
_FIELDS = {name: frozenset(published_schema(name)["properties"]) for name in sorted(DOCUMENTS)}
_LOOKS_LIKE_CODE = re.compile(r"^(\$ |pockfarm |curl |make |python3? |pip |import |from \w+ import )", re.MULTILINE)


def problem_of(snippet: Snippet) -> str:
    """What is wrong with the snippet as a text; empty for nothing."""
    if snippet.language not in LANGUAGES:
        return f"a language that nobody checks: {snippet.language!r}"
    if snippet.language == "text" and snippet.mark != "prints" and _LOOKS_LIKE_CODE.search(snippet.text):
        return "code that calls itself text"
    read = {"bash": _shell, "python": _python, "yaml": _yaml, "json": _json}.get(snippet.language)
    return read(snippet.text) if read else ""


def _shell(text: str) -> str:
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return done.stderr
    return next((told for told in map(_command, commands(text)) if told), "")


def commands(text: str) -> list[list[str]]:
    """The words of each command, up to a pipe or the next one."""
    found: list[list[str]] = []
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";|&<>")
        lexer.whitespace_split = True
        lexer.commenters = "#"
        words: list[str] = []
        with contextlib.suppress(ValueError):  # a text that goes on in the next line
            for word in lexer:
                if set(word) <= set(";|&<>"):
                    found.append(words)
                    words = []
                    continue
                words.append(word)
        found.append(words)
    return [words for words in found if words]


def _command(words: list[str]) -> str:
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    if words[:1] == ["pockfarm"] and "..." not in words and "…" not in words:
        return _options(words[1:])
    if len(words) > 2 and words[0] in ("python", "python3") and words[1] == "-m" and words[2] != "venv":
        return "" if importlib.util.find_spec(words[2]) else f"there is no module {words[2]}"
    return ""


def _options(words: list[str]) -> str:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            cli.parser().parse_args(words)
    except SystemExit as end:
        return f"pockfarm {' '.join(words)}: {said.getvalue()}" if end.code else ""
    except Exception as problem:  # the parser's own refusals
        return f"pockfarm {' '.join(words)}: {problem}"
    return ""


def _python(text: str) -> str:
    try:
        ast.parse(text)
    except SyntaxError as problem:
        return str(problem)
    return ""


def _json(text: str) -> str:
    try:
        json.loads(text)
    except ValueError as problem:
        return str(problem)
    return ""


def _yaml(text: str) -> str:
    try:
        body = yaml.safe_load(text)
    except yaml.YAMLError as problem:
        return str(problem)
    for name in ("plan", "spec"):
        if isinstance(body, dict) and body.keys() <= _FIELDS[name]:
            try:
                PARSE[name](text)
            except CompileError as problem:
                return f"no {name}: {problem}"
            return ""
    return ""
