"""The experiment file as frozen models: every key, its meaning and its default stand here once.

`load_experiment` reads a file and raises `InputError` with file, line and field. The reference
in `docs/experiment.md` is generated from these models.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveFloat, model_validator

from autotune import experiment_checks as checks
from autotune.experiment_consistency import checked
from autotune.experiment_errors import validated
from autotune.records import Value
from autotune.templates import Arg
from autotune.yaml_lines import load_yaml

ENGINES = ("sglang", "vllm", "openai")
"""Names of the engine adapters that an experiment file may use."""

SHIPPED = "shipped"
"""`workload.prompts` for the corpus that comes with autotune."""

EngineName = Literal["sglang", "vllm", "openai"]
Scalar = Annotated[Value, BeforeValidator(checks.scalar)]
Text = Annotated[str, BeforeValidator(checks.text)]
FlagName = Annotated[str, BeforeValidator(checks.flag_name)]
EnvName = Annotated[str, BeforeValidator(checks.env_name)]
ArgTemplate = Annotated[Arg, BeforeValidator(checks.argument)]
Arguments = Annotated[dict[FlagName, ArgTemplate], BeforeValidator(checks.arguments)]
Condition = Annotated[str, BeforeValidator(checks.expression)]


class Section(BaseModel):
    """A part of the file: immutable, and no key is ignored."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, serialize_by_alias=True
    )


class EngineSection(Section):
    """How one engine is started.

    `command`, `args` and `env` may use {port}, {host}, {served_name} and {trial_dir}, environment
    variables as ${NAME} or ${NAME:-default}, and a leading ~ for the home folder.
    """

    command: Annotated[tuple[Text, ...], BeforeValidator(checks.command)] = Field(
        min_length=1, description="the program and its first arguments, as a list"
    )
    args: Arguments = Field(
        default={},
        description="arguments that never change; true is a bare flag, null leaves it out, "
        "a list repeats values, a mapping is passed as JSON",
    )
    env: dict[EnvName, Text] = Field(
        default={}, description="environment variables that never change"
    )


class IntRange(Section):
    """Whole numbers from `low` to `high`, both included."""

    low: int = Field(ge=-(2**53), le=2**53, description="smallest value")
    high: int = Field(ge=-(2**53), le=2**53, description="largest value")
    step: int = Field(default=1, ge=1, description="distance between values")
    log: bool = Field(default=False, description="search on a logarithmic scale; needs low >= 1")

    @model_validator(mode="after")
    def _check(self) -> IntRange:
        return checks.int_range(self)


class FloatRange(Section):
    """Numbers from `low` to `high`, both included."""

    low: float = Field(description="smallest value")
    high: float = Field(description="largest value")
    step: float | None = Field(default=None, gt=0, description="distance between values; null: any")
    log: bool = Field(default=False, description="search on a logarithmic scale; needs low > 0")

    @model_validator(mode="after")
    def _check(self) -> FloatRange:
        return checks.float_range(self)


class Prior(Section):
    """What is expected of a parameter before anything was measured.

    An effect is a factor on an objective against the parameter's default: `{"3": 1.4}` says that
    the value 3 is expected to give 1.4 times the tokens per second.
    """

    default: Scalar = Field(
        default=None, description="expected best value; known_good entries that omit it get it"
    )
    weight: float = Field(
        default=0.5, ge=0, le=1, description="how often the search prefers the default, 0 to 1"
    )
    single: dict[str, PositiveFloat] = Field(
        default={}, description="value -> expected factor on single_stream_tok_s"
    )
    peak: dict[str, PositiveFloat] = Field(
        default={}, description="value -> expected factor on peak_tok_s"
    )


class Parameter(Section):
    """One thing to vary: exactly one of `choices`, `int` and `float`, and where it goes.

    A parameter named `engine` chooses among the engines and needs nothing else.
    """

    choices: Annotated[tuple[Scalar, ...], BeforeValidator(checks.choices)] | None = Field(
        default=None, description="the values to choose from; null leaves flag or variable unset"
    )
    int_: IntRange | None = Field(default=None, alias="int", description="a range of whole numbers")
    float_: FloatRange | None = Field(default=None, alias="float", description="a range of numbers")
    flag: FlagName | None = Field(
        default=None, description="argument that takes the value; true gives the bare flag"
    )
    flag_when_false: FlagName | None = Field(
        default=None, description="bare flag to give when the value is false"
    )
    env: Annotated[EnvName | dict[EnvName, Text], BeforeValidator(checks.env_target)] | None = (
        Field(
            default=None,
            description="variable that takes the value (true is 1, false 0), or several with "
            'templates: {NAME: "{num_steps + 1}"}',
        )
    )
    args: Arguments = Field(
        default={}, description='several arguments with templates: {flag: "{num_steps + 1}"}'
    )
    args_when: Condition | None = Field(
        default=None, description="give `args` and `env` templates only while this holds"
    )
    when: Condition | None = Field(
        default=None, description="the parameter exists only while this holds"
    )
    prior: Annotated[Prior, BeforeValidator(checks.prior)] | None = Field(
        default=None, description="the expected best value, or expected effects"
    )

    @model_validator(mode="after")
    def _check(self) -> Parameter:
        return checks.parameter(self)


class Forbid(Section):
    """Combinations that are never launched."""

    if_: Condition = Field(alias="if", description="what must not hold")
    because: str = Field(min_length=1, description="why: shown to whoever asks for it")


class Workload(Section):
    """What the server is measured with."""

    prompts: str = Field(
        default=SHIPPED,
        description="`shipped`, or the path of a JSONL file, from this file's folder",
    )
    kinds: list[str] | None = Field(
        default=None, description="kinds of shipped prompts to use; null: all"
    )
    input_tokens: int = Field(default=1024, ge=1, le=10_000_000, description="tokens per prompt")
    output_tokens: int = Field(default=256, ge=2, le=1_000_000, description="tokens per answer")
    peak_concurrency: int = Field(
        default=128, ge=1, le=16_384, description="requests in flight for peak_tok_s"
    )
    shared_prefix_tokens: int = Field(
        default=0, ge=0, description="leading tokens that all prompts share; 0: unique heads"
    )
    length_spread: float = Field(
        default=0.0, ge=0, lt=1, description="0.3 mixes lengths of +-30 %; 0: all alike"
    )
    chat: bool = Field(default=True, description="send through the model's chat template")
    request_rate: float | None = Field(
        default=None, gt=0, description="requests per second of an extra open-loop phase"
    )
    seed: int = Field(default=0, ge=0, description="chooses the prompts")

    @model_validator(mode="after")
    def _check(self) -> Workload:
        return checks.workload(self)


class MeasureSettings(Section):
    """How exactly and how long is measured."""

    single_precision: float = Field(
        default=0.02, gt=0, lt=1, description="relative half-width of the 95 % interval to reach"
    )
    peak_precision: float = Field(default=0.01, gt=0, lt=1, description="the same at peak")
    limit_seconds: float = Field(
        default=90.0,
        gt=0,
        le=86_400,
        description="time limit of repeats: 40 % for single-stream, 55 % for peak",
    )
    single_objective: Literal["end_to_end", "decode"] = Field(
        default="end_to_end",
        description="single_stream_tok_s over whole requests or after TTFT",
    )
    single_requests: int = Field(default=3, ge=1, description="fewest single-stream requests")
    exclusive_peak: bool = Field(
        default=True,
        description="where several trials share a host, one at a time is measured while the "
        "others load; false: they are measured side by side, and every outcome says so",
    )
    answer_check: bool = Field(
        default=True, description="refuse a server whose answers differ from the baseline's"
    )


class Budget(Section):
    """When the study ends."""

    trials: int = Field(default=40, ge=1, le=100_000, description="most trials")
    hours: float | None = Field(
        default=None,
        gt=0,
        description="trials end in time for the launches that confirm them; null: no limit",
    )
    consecutive_failures: int = Field(
        default=8, ge=1, description="stop after that many failed trials in a row"
    )


class Startup(Section):
    """How long a server may take to start."""

    stall_minutes: float = Field(
        default=15.0, gt=0, description="without any progress, the trial has stalled"
    )
    limit_hours: float = Field(default=3.0, gt=0, description="limit even with progress")
    expected_minutes: float = Field(
        default=10.0, gt=0, description="a usual start; only used for estimates"
    )
    preflight: bool = Field(
        default=False,
        description="ask the engine's own parser before each launch: 12-20 s, worth it where a "
        "refused launch costs more than that",
    )


class Confirm(Section):
    """The best configurations are launched again before they are believed, and the baseline.

    That can bring others to the front, which are launched again too, until all finalists were.
    """

    finalists: int = Field(
        default=3,
        ge=0,
        description="configurations of the front to repeat: its ends and the knee, then others",
    )
    relaunches: int = Field(
        default=1,
        ge=0,
        description="launches of each; no trials, so that they come on top of `budget.trials`, at "
        "most `3 * (finalists + 1) * relaunches` in one search",
    )


class StopSettings(Section):
    """How a server is stopped."""

    grace_seconds: float = Field(default=60.0, ge=0, description="between SIGTERM and SIGKILL")
    memory_tolerance_mib: float = Field(
        default=300.0, ge=0, description="GPU memory that may stay above what it was before"
    )


class Experiment(Section):
    """The whole file."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$",
        description="letters, digits, dot, dash, underscore; the run directory is named after it",
    )
    gpus_per_trial: int = Field(
        default=8, ge=0, le=1024, description="GPUs of one server; 0 is a server without GPUs"
    )
    listen: str = Field(
        default="127.0.0.1", description="address that servers listen on; loopback but for a reason"
    )
    engines: dict[EngineName, EngineSection] = Field(
        min_length=1, description="adapter name -> how it is started"
    )
    parameters: dict[str, Parameter] = Field(min_length=1, description="what to vary")
    forbid: tuple[Forbid, ...] = Field(default=(), description="combinations never launched")
    known_good: tuple[dict[str, Scalar], ...] = Field(
        default=(), description="measured first; the first is the baseline"
    )
    workload: Workload = Field(default=Workload(), description="what to measure with")
    measure: MeasureSettings = Field(default=MeasureSettings(), description="how exactly")
    constraints: dict[str, float] = Field(
        default={},
        description="limits on figures, e.g. p99_ttft_ms: 4000; latencies, failures and memory "
        "are limited from above, everything else from below",
    )
    budget: Budget = Field(default=Budget(), description="when the study ends")
    startup: Startup = Field(default=Startup(), description="how long a server may take to start")
    confirm: Confirm = Field(default=Confirm(), description="repeats of the best")
    stop: StopSettings = Field(default=StopSettings(), description="how a server is stopped")

    @model_validator(mode="after")
    def _check(self) -> Experiment:
        return checked(self)

    @property
    def confirming_launches(self) -> int:
        """Fresh launches of the finalists and the baseline, if no finalist falls back then."""
        return (self.confirm.finalists + bool(self.known_good)) * self.confirm.relaunches

    def with_prompts(self, path: Path | str) -> Experiment:
        """The same with another prompt file."""
        workload = self.workload.model_copy(update={"prompts": str(path)})
        return self.model_copy(update={"workload": workload})


def load_experiment(path: Path) -> Experiment:
    """Read and check an experiment file; raises InputError with every mistake's place."""
    return validated(Experiment, load_yaml(path))


def estimated_hours(experiment: Experiment) -> float:
    """Hours that the whole budget is expected to take, one trial after another."""
    measured_minutes = 2 * experiment.measure.limit_seconds / 60
    launches = experiment.budget.trials + experiment.confirming_launches
    hours = launches * (experiment.startup.expected_minutes + measured_minutes) / 60
    return min(hours, experiment.budget.hours or hours)
