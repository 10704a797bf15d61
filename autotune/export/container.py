"""The launch as a `docker run` command and as a Kubernetes manifest."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import yaml

from autotune.export.command import (
    EVERY_INTERFACE,
    PORT,
    ServeCommand,
    flag_and_values,
    grouped,
    in_image,
    written,
)
from autotune.export.header import Header
from autotune.export.plain import comments, shell_word
from autotune.records import Outcome, Phase

_IMAGES = {"sglang": "lmsysorg/sglang", "vllm": "vllm/vllm-openai"}
_NO_IMAGE = "REPLACE-WITH-YOUR-IMAGE"
_HEALTH = {"sglang": "/health", "vllm": "/health"}
_CACHE = "/root/.cache/huggingface"
_PROBE_SECONDS = 10
_PULL_SECONDS = 3600  # an image has tens of GB, and is pulled before the probe begins to count
_MOST = 2**31 - 1  # Kubernetes' integers
_STARTUP_PHASES = (Phase.LAUNCH, Phase.LOAD, Phase.CAPTURE, Phase.READY)


def image_of(outcome: Outcome) -> str:
    """The engine's published image of the version that was measured."""
    repository = _IMAGES.get(outcome.engine)
    if repository is None:
        return _NO_IMAGE
    version = (outcome.engine_version or "").partition("+")[0]
    return f"{repository}:v{version}" if version else f"{repository}:latest"


def docker(command: ServeCommand, outcome: Outcome, header: Header) -> str:
    """A `docker run` that serves on PORT of this host; secrets come from its environment."""
    words = ["docker run --rm --init", f'--publish "${{PORT:-{PORT}}}:{PORT}"', "--ipc host"]
    if command.gpus:
        words += [f"--gpus {command.gpus}", "--ulimit memlock=-1"]
    words += [f'--volume "$HOME/.cache/huggingface:{_CACHE}"']
    words += [f"--volume {shell_word(f'{path}:{path}:ro')}" for path in _paths(command)]
    words += [f"--env {name}" for name in command.secrets if name in command.env]
    words += [
        f"--env {shell_word(f'{name}={_in_place(value)}')}"
        for name, value in command.env.items()
        if name not in command.secrets
    ]
    program, *arguments = in_image(command.argv)
    words += [f"--entrypoint {program}", image_of(outcome)]
    lines = [*words, *_paired([shell_word(_in_place(w)) for w in arguments])]
    return "\n".join([*_comments(outcome, header), " \\\n  ".join(lines)]) + "\n"


def _paths(command: ServeCommand) -> list[str]:
    """Models that lie on this host's disk: the container has to see them."""
    named = (flag_and_values(group) for group in command.groups)
    found = [
        value
        for flag, values in named
        for value in values
        if value.startswith("/") and ("model" in flag or flag.endswith("-path"))
    ]
    if command.model.startswith("/"):
        found.insert(0, command.model)
    return list(dict.fromkeys(found))


def _in_place(word: str, secret: Callable[[str], str] = lambda name: f"\0{name}\0") -> str:
    """`word` with the container's own host and port; a secret is written as `secret(NAME)`."""
    fixed = {"HOST": EVERY_INTERFACE, "PORT": str(PORT)}
    return written(word, lambda name: fixed.get(name) or secret(name))


def _paired(words: list[str]) -> list[str]:
    """Lines with a flag and its values together, as a person would write them."""
    return [" ".join(group) for group in grouped(words)]


def _comments(outcome: Outcome, header: Header) -> list[str]:
    if image_of(outcome) != _NO_IMAGE:
        return comments(header)
    return [*comments(header), f"# WARNING: no image of {outcome.engine} is known: put in yours"]


def kubernetes(command: ServeCommand, outcome: Outcome, header: Header) -> str:
    """A Deployment and a Service; secrets are taken from a Secret that has to exist."""
    name = _dns_name(header.name)
    documents = [_deployment(name, command, outcome), _service(name)]
    text = yaml.dump_all(documents, Dumper=_Written, sort_keys=False, width=1000)
    lines = _comments(outcome, header)
    if command.secrets:
        keys = " ".join(f"--from-literal={secret}=..." for secret in command.secrets)
        lines.append(f"# First: kubectl create secret generic {name}-secrets {keys}")
    return "\n".join([*lines, text])


class _Written(yaml.SafeDumper):
    """Writes equal parts out in full, as a person edits them, without YAML's anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _dns_name(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:50].strip("-") or "server"


def _deployment(name: str, command: ServeCommand, outcome: Outcome) -> dict[str, Any]:
    labels = {"app": name}
    volumes = [
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
        {"name": "cache", "hostPath": {"path": "/var/cache/huggingface"}},
    ]
    for index, path in enumerate(_paths(command)):
        volumes.append({"name": f"model-{index}", "hostPath": {"path": path}})
    pod = {"containers": [_container(name, command, outcome)], "volumes": volumes}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "replicas": 1,
            # By default a rollout has failed after ten minutes, whatever the probe allows.
            "progressDeadlineSeconds": min(_start_seconds(command, outcome) + _PULL_SECONDS, _MOST),
            "strategy": {"type": "Recreate"},  # the GPUs are free only when the old one is gone
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def _container(name: str, command: ServeCommand, outcome: Outcome) -> dict[str, Any]:
    mounts: list[dict[str, Any]] = [
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "cache", "mountPath": _CACHE},
    ]
    for index, path in enumerate(_paths(command)):
        mounts.append({"name": f"model-{index}", "mountPath": path, "readOnly": True})
    words = [_in_place(word, lambda name: f"$({name})") for word in in_image(command.argv)]
    container: dict[str, Any] = {
        "name": "server",
        "image": image_of(outcome),
        "command": words[:1],
        "args": words[1:],
        "env": _environment(name, command),
        "ports": [{"name": "http", "containerPort": PORT}],
        "volumeMounts": mounts,
        **_probes(command, outcome),
    }
    if command.gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": command.gpus}}
    return container


def _environment(name: str, command: ServeCommand) -> list[dict[str, Any]]:
    """Variables of the container: those with a value, then those of the Secret."""
    known = [
        {"name": variable, "value": _in_place(value)}
        for variable, value in command.env.items()
        if variable not in command.secrets
    ]
    secret = [
        {
            "name": variable,
            "valueFrom": {"secretKeyRef": {"name": f"{name}-secrets", "key": variable}},
        }
        for variable in command.secrets
    ]
    return known + secret


def _start_seconds(command: ServeCommand, outcome: Outcome) -> int:
    """A start may take what the experiment allows one, and at least three times what it took here.

    The first on a node downloads or reads its weights cold, and one that is ended for it begins
    anew. A server that dies is started again at once, whatever the probe allows.
    """
    measured = sum(outcome.seconds.get(phase, 0.0) for phase in _STARTUP_PHASES)
    return math.ceil(min(max(command.start_limit_seconds, 3 * measured), _MOST))


def _probes(command: ServeCommand, outcome: Outcome) -> dict[str, Any]:
    path = _HEALTH.get(outcome.engine)
    check: dict[str, Any] = (
        {"httpGet": {"path": path, "port": "http"}} if path else {"tcpSocket": {"port": "http"}}
    )
    check |= {"periodSeconds": _PROBE_SECONDS, "timeoutSeconds": 5}
    failures = math.ceil(_start_seconds(command, outcome) / _PROBE_SECONDS)
    return {
        "startupProbe": {**check, "failureThreshold": failures},
        "readinessProbe": check,
    }


def _service(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {
            "selector": {"app": name},
            "ports": [{"name": "http", "port": PORT, "targetPort": "http"}],
        },
    }
