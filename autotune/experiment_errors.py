"""From a validation error to lines that say where, what, and what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from autotune.errors import InputError
from autotune.yaml_lines import Data, Document, Where

Model = TypeVar("Model", bound=BaseModel)
Problem = tuple[Where, str]
"""Where in the file, and what is wrong and would be right."""

MOST_SHOWN = 10
MOST_NAMED = 24


def wrong(message: str) -> PydanticCustomError:
    """A mistake in the field being validated."""
    return PydanticCustomError("wrong", "{message}", {"message": message})


def problems_error(problems: list[Problem]) -> PydanticCustomError:
    """Mistakes that span fields, each with its own place."""
    message = "; ".join(text for _, text in problems)
    return PydanticCustomError("problems", "{message}", {"message": message, "problems": problems})


def nearest(name: str, valid: Iterable[str]) -> str:
    """`did you mean …? valid: …`, for messages about an unknown name."""
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1)
    guess = f"did you mean {close[0]}? " if close else ""
    if len(names) > MOST_NAMED:
        return f"{guess}the {len(names)} valid names are in docs/experiment.md"
    return f"{guess}valid: {', '.join(names)}" if names else "there are none"


def validated(model: type[Model], document: Document) -> Model:
    """The document as `model`; raises InputError, one line a mistake in the file's order."""
    if not isinstance(document.data, dict):
        raise document.error((), f"must be a mapping of keys, such as {_keys(model)}")
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        found = [problem for details in error.errors() for problem in _problems(details, model)]
    except RecursionError:
        raise document.error((), "nested too deeply") from None
    placed = [(_place(where, document.data), message) for where, message in found]
    unique = sorted(dict.fromkeys(placed), key=lambda problem: document.line(problem[0]))
    raise joined([document.error(where, message) for where, message in unique])


def joined(errors: list[InputError]) -> InputError:
    """Mistakes as one error, a line for each of the first few."""
    first = errors[0]
    shown = [str(error) for error in errors[:MOST_SHOWN]]
    if len(errors) > MOST_SHOWN:
        shown.append(f"... and {len(errors) - MOST_SHOWN} more")
    whole = InputError("\n".join(shown))
    whole.file, whole.line, whole.field = first.file, first.line, first.field
    return whole


def _keys(model: type[BaseModel]) -> str:
    return ", ".join(field.alias or name for name, field in model.model_fields.items())


def _problems(details: ErrorDetails, model: type[BaseModel]) -> Iterator[Problem]:
    where = details["loc"]
    if details["type"] == "problems":
        for inner, message in details["ctx"]["problems"]:
            yield (*where, *inner), message
    else:
        yield where, _message(details, model)


def _message(details: ErrorDetails, model: type[BaseModel]) -> str:
    where, kind = details["loc"], details["type"]
    if kind == "extra_forbidden":
        owner = _model_at(model, where[:-1])
        keys = {field.alias or name for name, field in owner.model_fields.items()}
        return f"unknown key; {nearest(str(where[-1]), keys)}"
    if kind == "missing":
        owner = _model_at(model, where[:-1])
        return f"is missing: {_description(owner, str(where[-1]))}"
    if kind == "wrong":
        return details["msg"]
    if len(where) == 3 and where[0] == "engines" and where[2] == "[key]":
        expected = details["ctx"]["expected"].replace("'", "").replace(" or ", ", ")
        return f"unknown engine; {nearest(str(where[1]), expected.split(', '))}"
    return _builtin(details)


def _builtin(details: ErrorDetails) -> str:
    """pydantic's own sentence, with the value unless it could be a secret."""
    sentence = details["msg"].replace("Input should", "must")
    if details["type"] == "string_pattern_mismatch":
        sentence = "must be letters, digits, dot, dash or underscore, and begin with no dot"
    if details["loc"][:1] == ("engines",):
        return sentence
    value = repr(details["input"])
    return f"{sentence}, not {value if len(value) <= 60 else value[:57] + '...'}"


def _description(owner: type[BaseModel], key: str) -> str:
    for name, field in owner.model_fields.items():
        if (field.alias or name) == key:
            return field.description or key
    return key


def _model_at(model: type[BaseModel], where: Where) -> type[BaseModel]:
    """The model whose keys stand at `where`."""
    for part in where:
        for name, field in model.model_fields.items():
            if (field.alias or name) == part:
                model = _inner_model(field.annotation) or model
    return model


def _inner_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = (_inner_model(argument) for argument in get_args(annotation))
    return next((model for model in inner if model), None)


def _place(where: Where, data: Data) -> Where:
    """`where` without the parts that name alternatives of a type, not keys of the file."""
    kept: list[str | int] = []
    for index, part in enumerate(where):
        if isinstance(data, dict) and part in data:
            data = data[str(part)]
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
        elif part == "[key]" or not isinstance(data, dict) or index < len(where) - 1:
            continue
        kept.append(part)
    return tuple(kept)
