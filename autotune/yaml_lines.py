"""YAML with the line of every key, read safely and without YAML 1.1's surprises.

Only plain data comes out: mappings with text keys, lists, text, numbers, booleans and null.
Differences from what a YAML 1.1 loader would do, each because it has cost somebody a night:

- a key given twice is an error, not "the last one wins";
- unquoted yes/no/on/off is an error: it could mean a switch or the text;
- `1e-3` is a number, `12:30` and `2026-01-01` are text, `010` is ten;
- no tags, no merge keys, no infinite numbers.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from autotune.errors import InputError

Data = None | bool | int | float | str | list["Data"] | dict[str, "Data"]
Where = tuple[str | int, ...]
"""Where a value stands in the document: ("parameters", "num_steps", "choices", 0)."""

LARGEST_FILE_BYTES = 1_000_000
MOST_NODES = 100_000  # aliases count each time they are used: no exponential expansion
DEEPEST = 60

_NULL = re.compile(r"~|null|Null|NULL|")
_TRUE = re.compile(r"true|True|TRUE")
_FALSE = re.compile(r"false|False|FALSE")
_AMBIGUOUS = re.compile(r"yes|no|on|off", re.IGNORECASE)
_INT = re.compile(r"[-+]?[0-9]+|0x[0-9a-fA-F]+|0o[0-7]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_LONGEST_NUMBER = 40
_TAGS = {
    f"tag:yaml.org,2002:{name}"
    for name in ("map", "seq", "str", "null", "bool", "int", "float", "timestamp", "merge", "value")
}


@dataclass
class Document:
    """A YAML file's data, and the line (from 1) of each of its keys and list items."""

    file: str
    data: Data = None
    lines: dict[Where, int] = field(default_factory=dict)
    nodes: int = 0

    def line(self, path: Where) -> int:
        """The line of `path`, or of the nearest enclosing key that has one."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def error(self, path: Where, message: str, line: int | None = None) -> InputError:
        """One line that says where and what."""
        field = one_line(dotted(path)) or None
        return InputError(
            one_line(message), file=self.file, line=line or self.line(path), field=field
        )


def dotted(path: Where) -> str:
    """`parameters.num_steps.choices[0]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def one_line(text: str) -> str:
    """Text of a file as it may be shown: nothing in it moves the cursor or breaks the line."""
    shown = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return "".join(shown)


def load_yaml(path: Path) -> Document:
    """Read a YAML file; raises InputError with file and line."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"cannot be read: {reason}", file=path) from None
    if len(raw) > LARGEST_FILE_BYTES:
        limit = LARGEST_FILE_BYTES // 1000
        raise InputError(f"is larger than {limit} kB: not an experiment file", file=path)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise InputError("is not UTF-8 text", file=path, line=line) from None
    return parse_yaml(text, str(path))


def parse_yaml(text: str, file: str) -> Document:
    """Read YAML text; `file` is only named in errors."""
    document = Document(file)
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is None:
            raise document.error((), "is empty; `autotune init` writes a file to start from")
        document.data = _build(node, (), document)
    except yaml.MarkedYAMLError as error:
        raise _not_yaml(error, document) from None
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise document.error((), f"is not YAML: {error.reason}", line) from None
    except (RecursionError, ValueError) as error:  # deep nesting; a `\U` escape out of range
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise document.error((), f"is not YAML: {reason}") from None
    return document


def _not_yaml(error: yaml.MarkedYAMLError, document: Document) -> InputError:
    mark = error.problem_mark or error.context_mark
    problem = " ".join(part for part in (error.context, error.problem) if part)
    line = mark.line + 1 if mark else 1
    return document.error((), f"is not YAML: {problem}", line)


def _build(node: Node, path: Where, document: Document) -> Data:
    line = node.start_mark.line + 1
    document.lines.setdefault(path, line)
    document.nodes += 1
    if document.nodes > MOST_NODES or len(path) > DEEPEST:
        raise document.error(path, "nested too deeply or too large for an experiment file", line)
    if node.tag not in _TAGS:
        raise document.error(path, f"the tag {node.tag} is not supported: write plain data", line)
    if isinstance(node, MappingNode):
        return _mapping(node, path, document)
    if isinstance(node, SequenceNode):
        return [_build(item, (*path, i), document) for i, item in enumerate(node.value)]
    assert isinstance(node, ScalarNode)
    return _scalar(node, path, document)


def _mapping(node: MappingNode, path: Where, document: Document) -> Data:
    mapping: dict[str, Data] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, ScalarNode):
            raise document.error(path, "a key must be text; quote values with braces", line)
        key = key_node.value
        if key == "<<" and key_node.style is None:
            raise document.error(path, "merge keys (<<) are not supported: write it out", line)
        if key in mapping:
            first = document.lines[(*path, key)]
            message = f"is given twice (first in line {first}): keep one"
            raise document.error((*path, key), message, line)
        document.lines[(*path, key)] = line
        mapping[key] = _build(value_node, (*path, key), document)
    return mapping


def _scalar(node: ScalarNode, path: Where, document: Document) -> Data:
    text, line = str(node.value), node.start_mark.line + 1
    if "\0" in text:
        raise document.error(path, "text may not hold a NUL character", line)
    if node.style is not None:  # quoted or a block: always text
        return text
    return _plain(text, path, document, line)


def _plain(text: str, path: Where, document: Document, line: int) -> Data:
    if _NULL.fullmatch(text):
        return None
    if _TRUE.fullmatch(text) or _FALSE.fullmatch(text):
        return text.lower() == "true"
    if _AMBIGUOUS.fullmatch(text):
        switch = "true" if text.lower() in ("yes", "on") else "false"
        raise document.error(path, f'write {switch} for a switch, or "{text}" for the text', line)
    if _INFINITE.fullmatch(text):
        raise document.error(path, f"must be a finite number, not {text}", line)
    if len(text) > _LONGEST_NUMBER:
        return text
    if _INT.fullmatch(text):
        return int(text, 0) if text.startswith(("0x", "0o")) else int(text)
    if _FLOAT.fullmatch(text):
        return _finite(float(text), text, path, document, line)
    return text


def _finite(number: float, text: str, path: Where, document: Document, line: int) -> float:
    if math.isinf(number):
        raise document.error(path, f"must be a finite number, not {text}", line)
    return number
