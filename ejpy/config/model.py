"""A job's configuration: its keys, their types, ranges and defaults, in one place.

A `JobConfig` is complete and valid or does not exist: making one checks every key and reports all that is wrong at once.
Values may be given as what they are or as the texts that stand for them, keys in ejpy's spelling (`sharding_total_count`)
or ElasticJob's (`shardingTotalCount`). Unknown keys are refused, since a key that is ignored in silence is a job that
runs otherwise than its owner believes. Whether a cron expression is right depends on the time, and is checked where the
time is known (`file`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ModelWrapValidatorHandler, ValidationError, model_validator
from typing_extensions import Self

from ejpy.config import durations, kinds, values
from ejpy.errors import ConfigError
from ejpy.terms import CatchUp, Executor
from ejpy.wording import closest, one_line, shown

MOST_ITEMS = 100_000
_JAVA_INT = (-(2**31), 2**31 - 1)


class ShardingStrategyName(str, Enum):
    """How items are shared out among the instances of a job. All but STICKY are ElasticJob's."""

    AVG_ALLOCATION = "AVG_ALLOCATION"
    ODEVITY = "ODEVITY"
    ROUND_ROBIN = "ROUND_ROBIN"
    SINGLE_SHARDING_BALANCE = "SINGLE_SHARDING_BALANCE"
    """A job of one item moves on to the next server after each run."""
    STICKY = "STICKY"
    """Balanced within one, with the fewest moves; ejpy's own."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong (or odd) with one key."""

    key: str
    """As it was written; for a key that is missing, as it should be."""
    message: str


class InvalidJob(ConfigError):
    """A ConfigError that also tells which key each problem belongs to."""

    def __init__(self, findings: list[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__([one_line(f"{finding.key}: {finding.message}") for finding in findings])


Text = Annotated[str, BeforeValidator(values.text)]
OptionalText = Annotated[str | None, BeforeValidator(values.optional_text)]
Flag = Annotated[bool, BeforeValidator(values.flag)]
JavaInt = Annotated[int, BeforeValidator(values.whole(*_JAVA_INT))]
Duration = Annotated[timedelta, BeforeValidator(values.duration)]


class JobConfig(BaseModel):
    """What is configured of one job. Immutable.

    Raises ConfigError (`InvalidJob`) when it is made from values that are wrong, unknown or missing, with all of them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    job_name: Annotated[str, BeforeValidator(values.job_name)]
    """At most 200 characters, without `/`, `@-@` and control characters."""
    job_class: Text
    """What the registry knows the job by: `module:Class`, `SCRIPT` or `HTTP`; with Java workers their class, or any text."""
    cron: Annotated[str | None, BeforeValidator(values.cron)] = None
    """When the job fires. None: a one-off job, which runs when it is triggered."""
    time_zone: OptionalText = None
    """Zone of the cron expression; None: the worker's."""
    sharding_total_count: Annotated[int, BeforeValidator(values.whole(1, MOST_ITEMS))]
    """How many items the job is cut into."""
    sharding_item_parameters: Annotated[Mapping[int, str], BeforeValidator(values.sharding_item_parameters)] = Field(
        default_factory=dict
    )
    job_parameter: Text = ""
    failover: Flag = False
    misfire: Flag = True
    monitor_execution: Flag = True
    job_sharding_strategy_type: Annotated[
        ShardingStrategyName | str, BeforeValidator(values.choice_or_name(ShardingStrategyName))
    ] = ShardingStrategyName.AVG_ALLOCATION
    """A name that is not ejpy's is one for `ejpy.sharding_strategies.strategy_class`. From a registry, any text."""
    disabled: Flag = False
    """Whether the job is disabled on a server that registers it."""
    overwrite: Flag = False
    """Whether this configuration replaces the one in the registry."""
    description: Text = ""
    label: OptionalText = None
    props: Annotated[Mapping[str, str], BeforeValidator(values.props)] = Field(default_factory=dict)
    reconcile_interval_minutes: JavaInt = 10
    """0 and less: never."""
    max_time_diff_seconds: JavaInt = -1
    """A worker whose clock differs more from the registry's runs nothing of the job. Below 0: it is only warned of."""
    static_sharding: Flag = False
    job_error_handler_type: OptionalText = None
    """Who is told of failures: a name that `ejpy.error_handlers.handler_class` knows; None: LOG. From a registry, any text."""
    job_listener_types: Annotated[tuple[str, ...], BeforeValidator(values.names)] = ()
    """Who is called before and after each fire: names for `ejpy.listeners.listener_class`. From a registry, any texts."""

    catch_up: Annotated[CatchUp, BeforeValidator(values.choice(CatchUp))] = CatchUp.LATEST
    misfire_grace: Duration = timedelta(minutes=5)
    """Fires older than this are recorded as missed, never caught up."""
    claim_timeout: Duration = timedelta(seconds=30)
    """How long a live owner may leave a due fire unclaimed before the item is moved."""
    failover_max_duration: Annotated[timedelta | None, BeforeValidator(values.optional(values.duration))] = None
    """`failover` runs again only what usually takes less than this; None: whatever it takes."""
    timeout: Annotated[timedelta | None, BeforeValidator(values.optional(values.duration))] = None
    """How long one attempt may run; None: without limit."""
    executor: Annotated[Executor | None, BeforeValidator(values.optional(values.choice(Executor)))] = None
    """None: asyncio for `async def execute`, else a thread."""
    running_marks: Flag = False
    """Write ElasticJob's marks of running, missed and failed over items also while no Java worker is there: for
    elasticjob-ui."""
    python_class: OptionalText = None
    """`module:Class` to run here if `job_class` does not name it. A matter of this worker alone: it is never stored."""

    @property
    def own_sharding_strategy(self) -> str | None:
        """The name of the sharding strategy, if it is not one of ejpy's."""
        name = self.job_sharding_strategy_type
        return None if isinstance(name, ShardingStrategyName) else name

    @property
    def body_class(self) -> str:
        """What a body is made of, for `load_class`: `module:Class`, or the type of a typed job."""
        return self.python_class or self.job_class

    @model_validator(mode="wrap")
    @classmethod
    def _report_everything(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(data, Mapping):
            return handler(data)
        by_field, written, findings = _by_field(data)
        misspelled = {field_of(meant) for key in data if (meant := closest_key(key)) is not None}
        try:
            job = handler(by_field)
        except ValidationError as error:
            for problem in error.errors(include_url=False, include_input=False):
                field = str(problem["loc"][0])
                if problem["type"] == "missing" and field in misspelled:
                    continue
                cause = problem.get("ctx", {}).get("error")
                message = REQUIRED[field] if problem["type"] == "missing" else str(cause or problem["msg"])
                findings.append(Finding(written.get(field, file_key(field)), message))
            raise InvalidJob(findings) from None
        if findings:
            raise InvalidJob(findings)
        return job

    def warnings(self) -> list[Finding]:
        """What is allowed, but hardly meant."""
        found = []
        beyond = [str(item) for item in sorted(self.sharding_item_parameters) if item >= self.sharding_total_count]
        if beyond:
            items = ", ".join(beyond[:10]) + (", …" if len(beyond) > 10 else "")
            total = self.sharding_total_count
            found.append(Finding("sharding_item_parameters", f"no effect for item {items}: sharding_total_count is {total}"))
        if self.failover and not self.monitor_execution:
            found.append(Finding("failover", "no effect while monitor_execution is false"))
        return found


REQUIRED = {
    "job_name": "required; give the job a name",
    "job_class": f"required; give the job's class as module:Class, or its type: {', '.join(kinds.CLASS_OF_TYPE)}",
    "sharding_total_count": f"required; a whole number from 1 to {MOST_ITEMS}",
}

UNSUPPORTED = (
    "job_executor_thread_pool_size_provider_type",
    "job_executor_service_handler_type",
    "job_extra_configurations",
)
"""ElasticJob's keys that would have no effect."""


def camel_case(name: str) -> str:
    """ElasticJob's spelling of a key: `job_name` → `jobName`."""
    first, *others = name.split("_")
    return first + "".join(other.capitalize() for other in others)


_TYPE_KEYS = ("type", "job_type", "elastic_job_type")


def _spellings() -> dict[str, str]:
    spellings = {"class": "job_class", "elastic_job_class": "job_class", "sharding_strategy": "job_sharding_strategy_type"}
    spellings |= dict.fromkeys(_TYPE_KEYS, "job_class")
    spellings |= {name: name for name in JobConfig.model_fields}
    return spellings | {camel_case(key): field for key, field in spellings.items()}


_FIELD_OF = _spellings()
SPELLINGS = tuple(_FIELD_OF)
"""All keys, in all spellings."""
_TYPE_SPELLINGS = {spelling for key in _TYPE_KEYS for spelling in (key, camel_case(key))}
_UNSUPPORTED_SPELLINGS = {spelling for key in UNSUPPORTED for spelling in (key, camel_case(key))}


def field_of(key: str) -> str | None:
    """The `JobConfig` attribute that a key sets, in whichever spelling; None for a key that does not exist."""
    return _FIELD_OF.get(key)


def says_type(key: str) -> bool:
    """Whether a key gives the class of a job by naming its type."""
    return key in _TYPE_SPELLINGS


def write_value(value: object) -> str:
    """The text that stands for the value of a key that is no mapping; the model reads it back as the same value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, timedelta):
        return durations.write(value)
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


def file_key(field: str) -> str:
    """The key to name an attribute by to a user."""
    return "class" if field == "job_class" else field


def closest_key(key: object) -> str | None:
    """For a key that does not exist: the one that was probably meant, in the spelling that was tried."""
    if not isinstance(key, str) or key in _FIELD_OF or key in _UNSUPPORTED_SPELLINGS:
        return None
    camel = key != key.lower()
    return closest(key, [spelling for spelling in _FIELD_OF if ("_" not in spelling if camel else spelling.islower())])


def unknown_key(key: object) -> str:
    """What to say of a key that does not exist."""
    if key in _UNSUPPORTED_SPELLINGS:
        return "not supported: ElasticJob has this key, but it would have no effect in ejpy; remove it"
    near = closest_key(key)
    if near is not None:
        return f"unknown key; did you mean {near}?"
    return f"unknown key; allowed: {', '.join(file_key(field) for field in JobConfig.model_fields)}"


def _by_field(data: Mapping[Any, Any]) -> tuple[dict[str, Any], dict[str, str], list[Finding]]:
    """Values and keys as written, by attribute, and what is wrong with the keys themselves."""
    by_field: dict[str, Any] = {}
    written: dict[str, str] = {}
    findings: list[Finding] = []
    for key, value in data.items():
        field = field_of(key) if isinstance(key, str) else None
        if field is None:
            findings.append(Finding(str(key), unknown_key(key)))
        elif field not in written:
            written[field] = key
            by_field[field] = value
        elif says_type(key) != says_type(written[field]):
            findings.append(Finding(key, f"a job has a class or a type, and {written[field]} is given, too; remove one"))
        else:
            findings.append(Finding(key, f"given twice, also as {written[field]}"))
    if says_type(written.get("job_class", "")):
        findings += _type_as_class(by_field, written["job_class"])
    return by_field, written, findings


def _type_as_class(by_field: dict[str, Any], key: str) -> list[Finding]:
    """Put a type, as it is stored, for the class. A type that ejpy does not have is Java's, and needs a class here."""
    given = by_field["job_class"]
    if not isinstance(given, str):
        return []
    known = kinds.known_type(given)
    if known is not None:
        by_field["job_class"] = known
    elif not by_field.get("python_class"):
        allowed = ", ".join(kinds.CLASS_OF_TYPE)
        more = "any other needs python_class; for a class of your own give class instead of a type"
        return [Finding(key, f"{shown(given)} is not allowed; allowed: {allowed}; {more}")]
    return []
