"""CreateTopics, DeleteTopics and settings of topics: Kafka's words for what a store can do.

Settings of ours have Kafka's names where they mean the same. Some of Kafka's own have one value
here that cannot be changed (`FIXED`): they are described, and accepted with that value, because
programs set and check them.

Rules.
1. What a topic has is described whole, with defaults and where a value comes from. Programs read
   all settings, change one, and write all of them back.
2. `validate_only` refuses what the same request without it would refuse.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lamina.config import TopicSettings
from lamina.errors import InvalidRequest, LaminaError, UnknownTopic
from lamina.groups.settings_book import ShareGroupSettings
from lamina.server.kafka.sessions import Call, at_work
from lamina.server.kafka.topic_ids import NO_ID, topic_id
from lamina.server.setting_table import ServerSettings
from lamina.storage import paths
from lamina.store.catalog import PARTITIONS_MAX
from lamina.wire.kafka.codec import Message
from lamina.wire.kafka.error_codes import ErrorCode

TOPIC, BROKER, GROUP = 2, 4, 32
FORMAT = "lamina.format"
FIXED = {
    "compression.type": "producer",
    "min.insync.replicas": "1",
    "unclean.leader.election.enable": "false",
}
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
_DYNAMIC_TOPIC, _STATIC_BROKER, _DEFAULT, _DYNAMIC_GROUP = 1, 4, 5, 8
_LISTS = frozenset({"cleanup.policy"})
_TYPES: dict[type, int] = {bool: 1, str: 2, int: 3}
_LIST_TYPE = 7
_DEFAULTS = {row["key"]: row["default"] for row in TopicSettings.explained()}
_GROUP_DEFAULTS = {row["key"]: row["default"] for row in ShareGroupSettings.explained()}
_MEANINGS = {row["key"]: row["consequence"] for row in TopicSettings.explained()}


class _BadSetting(InvalidRequest):
    """A setting that there is not, or that cannot have this value."""


# ---------------------------------------------------------------- topics


async def create_topics(call: Call) -> Message:
    """Answers CreateTopics."""
    asked = call.request["topics"]
    names = [topic["name"] for topic in asked]
    with at_work(call):
        made = [await call.in_pool(_create, call, topic, names) for topic in asked]
    return {"topics": made}


def _create(call: Call, asked: Message, names: list[str]) -> Message:
    name = asked["name"]
    try:
        call.caller.require("admin", name, "create topics")
        if names.count(name) > 1:
            said = f"topic {name!r} is named {names.count(name)} times"
            return _refused(name, ErrorCode.INVALID_REQUEST, said)
        partitions = _partitions(call, asked)
        config = {each["name"]: each["value"] for each in asked["configs"]}
        format_name = config.pop(FORMAT, None) or "keratin"
        settings = _settable(config)
        if name in call.store.topics():
            return _refused(
                name, ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} is there already"
            )
        only_check = call.request["validate_only"]
        make = call.store.topic_changes.check_new if only_check else call.store.create_topic
        make(name, partitions=partitions, format=format_name, config=settings)
    except _BadSetting as error:
        return _refused(name, ErrorCode.INVALID_CONFIG, str(error))
    except InvalidRequest as error:
        code, said = call.told(error)
        known = code is not ErrorCode.INVALID_REQUEST
        return _refused(name, code if known else _why(call, asked), said)
    except LaminaError as error:
        return _refused(name, *call.told(error))
    return _created(call, name, partitions)


def _why(call: Call, asked: Message) -> ErrorCode:
    """Which part of a request is wrong that the store has refused."""
    if not 1 <= _partitions(call, asked) <= PARTITIONS_MAX:
        return ErrorCode.INVALID_PARTITIONS
    if asked["name"] in call.store.topics():
        return ErrorCode.TOPIC_ALREADY_EXISTS
    try:
        paths.topic_name(asked["name"])
    except InvalidRequest:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    return ErrorCode.INVALID_CONFIG


def _partitions(call: Call, asked: Message) -> int:
    if asked["assignments"]:  # of replicas to brokers: there is one broker
        return len(asked["assignments"])
    if asked["num_partitions"] == -1:
        return call.door.broker.settings.kafka_default_partitions
    return int(asked["num_partitions"])


def _refused(name: str, code: ErrorCode, said: str) -> Message:
    return {"name": name, "error_code": code, "error_message": said, "configs": []}


def _created(call: Call, name: str, partitions: int) -> Message:
    if call.request["validate_only"]:
        return {"name": name, "error_message": None, "configs": []}
    return {
        "name": name,
        "topic_id": topic_id(call.store, name),
        "error_message": None,
        "num_partitions": partitions,
        "replication_factor": 1,
        "configs": _described(call.store.describe_topic(name).settings),
    }


async def delete_topics(call: Call) -> Message:
    """Answers DeleteTopics, by name or by id."""
    asked = call.request["topics"] or [
        {"name": name, "topic_id": NO_ID} for name in call.request["topic_names"]
    ]
    with at_work(call):
        return {"responses": [await call.in_pool(_delete, call, topic) for topic in asked]}


def _delete(call: Call, asked: Message) -> Message:
    name, identity = asked["name"], asked["topic_id"]
    answer: Message = {"name": name, "topic_id": identity}
    if name is None:
        name = call.door.topic_ids.name_of(call.store, identity)
        if name is None or not call.may("read", name):
            return answer | {"error_code": ErrorCode.UNKNOWN_TOPIC_ID}
        answer["name"] = name
    try:
        call.door.broker.call(call.caller, "delete_topic", {"name": name})
    except LaminaError as error:
        code, said = call.told(error)
        return answer | {"error_code": code, "error_message": said}
    return answer


# ---------------------------------------------------------------- settings


def _settable(config: Mapping[str, str | None]) -> dict[str, Any]:
    """Takes out what is fixed here; raises for what a topic does not have."""
    for key, value in config.items():
        if key in FIXED and value not in (FIXED[key], None):
            raise _BadSetting(f"{key} is {FIXED[key]} here and cannot be {value!r}")
    given = {key: value for key, value in config.items() if key not in FIXED and value is not None}
    try:
        return _changed(TopicSettings.parse(given), given)
    except InvalidRequest as error:
        raise _BadSetting(str(error)) from error


def _changed(settings: TopicSettings, given: Iterable[str]) -> dict[str, Any]:
    values = settings.as_dict()
    return {key: values[key] for key in given}


def _described(settings: Mapping[str, Any], keys: list[str] | None = None) -> list[Message]:
    """Describes every setting of a topic, or those that are named."""
    rows = [_row(key, value, _DEFAULTS.get(key)) for key, value in settings.items()]
    rows += [_fixed(key, value) for key, value in FIXED.items()]
    return [row for row in rows if keys is None or row["name"] in keys]


def _row(key: str, value: Any, default: Any) -> Message:
    source = _DEFAULT if value == default else _DYNAMIC_TOPIC
    synonyms = [{"name": key, "value": str(value), "source": source}]
    if source != _DEFAULT:
        synonyms.append({"name": key, "value": str(default), "source": _DEFAULT})
    return {
        "name": key,
        "value": str(value),
        "config_source": source,
        "synonyms": synonyms,
        "config_type": _LIST_TYPE if key in _LISTS else _TYPES.get(type(value), 2),
        "documentation": _MEANINGS.get(key),
    }


def _fixed(key: str, value: Any) -> Message:
    return {
        "name": key,
        "value": str(value),
        "read_only": True,
        "config_source": _DEFAULT,
        "synonyms": [{"name": key, "value": str(value), "source": _DEFAULT}],
        "config_type": _TYPES.get(type(value), 2),
        "documentation": None,
    }


async def describe_configs(call: Call) -> Message:
    """Answers DescribeConfigs of topics and of the broker."""
    with at_work(call):
        asked = {
            (each["resource_type"], each["resource_name"]): each
            for each in call.request["resources"]
        }
        return {"results": [await call.in_pool(_describe, call, each) for each in asked.values()]}


def _describe(call: Call, asked: Message) -> Message:
    kind, name = asked["resource_type"], asked["resource_name"]
    keys = asked["configuration_keys"] or None  # none named is all, as null is
    answer: Message = {"resource_type": kind, "resource_name": name, "error_message": None}
    try:
        if kind == TOPIC:
            call.caller.require("read", name, "describe configs")
            answer["configs"] = _described(call.store.describe_topic(name).settings, keys)
        elif kind == BROKER and name in ("", str(call.node_id)):
            call.caller.require("admin", None, "describe configs")
            answer["configs"] = _of_broker(call.door.broker.settings, keys)
        elif kind == GROUP:
            call.caller.require("read", name, "describe configs")
            answer["configs"] = _of_group(call, name, keys)
        else:
            raise InvalidRequest(
                f"there are topics (2), broker {call.node_id} (4) and groups (32) to describe"
            )
    except LaminaError as error:
        code, said = call.told(error)
        answer |= {"error_code": code, "error_message": said, "configs": []}
    for row in answer["configs"]:
        if not call.request["include_synonyms"]:
            row["synonyms"] = []
        if not call.request["include_documentation"]:
            row["documentation"] = None
    return answer


def _of_broker(settings: ServerSettings, keys: list[str] | None) -> list[Message]:
    rows = [_fixed(key, value) for key, value in settings.as_dict().items()]
    for row in rows:
        row["config_source"] = _STATIC_BROKER
    return [row for row in rows if keys is None or row["name"] in keys]


def _of_group(call: Call, name: str, keys: list[str] | None) -> list[Message]:
    settings = call.store.coordinator.share_settings.of(name).as_dict()
    rows = [_row(key, value, _GROUP_DEFAULTS[key]) for key, value in settings.items()]
    for row, about in zip(rows, ShareGroupSettings.explained(), strict=True):
        row["documentation"] = about["consequence"]
        for each in (row, *row["synonyms"]):
            for field in ("config_source", "source"):
                if each.get(field) == _DYNAMIC_TOPIC:
                    each[field] = _DYNAMIC_GROUP
    return [row for row in rows if keys is None or row["name"] in keys]


async def incremental_alter_configs(call: Call) -> Message:
    """Answers IncrementalAlterConfigs: settings one by one."""
    with at_work(call):
        asked = call.request["resources"]
        return {"responses": [await call.in_pool(_alter_some, call, each) for each in asked]}


def _alter_some(call: Call, asked: Message) -> Message:
    is_topic = asked["resource_type"] == TOPIC
    changes: dict[str, str | None] = {}
    for each in asked["configs"]:
        name, operation, value = each["name"], each["config_operation"], each["value"]
        if name in changes:
            return _altered(asked, ErrorCode.INVALID_REQUEST, f"{name} is named twice")
        if operation == _DELETE:
            changes[name] = _default(name)
        elif operation not in (_SET, _APPEND, _SUBTRACT):
            return _altered(asked, ErrorCode.INVALID_REQUEST, f"there is no operation {operation}")
        elif value is None:
            return _altered(asked, ErrorCode.INVALID_REQUEST, f"{name} cannot be null")
        elif operation == _SET:
            changes[name] = value
        elif is_topic and name in _LISTS:
            changes[name] = _relisted(call, asked["resource_name"], each)
        else:
            said = f"{name} is no list: it is set or deleted as a whole"
            return _altered(asked, ErrorCode.INVALID_CONFIG, said)
    return (_alter if asked["resource_type"] != GROUP else _alter_group)(call, asked, changes)


def _relisted(call: Call, topic: str, change: Message) -> str:
    """Returns a setting that is a list with values added to it, or taken out."""
    try:
        now = str(call.store.describe_topic(topic).settings[change["name"]]).split(",")
    except LaminaError:
        now = []  # whoever changes the topic is told what is wrong with it
    given = change["value"].split(",")
    if change["config_operation"] == _SUBTRACT:
        return ",".join(each for each in now if each not in given)
    return ",".join(dict.fromkeys([*now, *given]))


async def alter_configs(call: Call) -> Message:
    """Answers AlterConfigs: all settings at once; those that are not named get their default."""
    with at_work(call):
        asked = call.request["resources"]
        return {"responses": [await call.in_pool(_alter_all, call, each) for each in asked]}


def _alter_all(call: Call, asked: Message) -> Message:
    is_group = asked["resource_type"] == GROUP
    defaults = _GROUP_DEFAULTS if is_group else _DEFAULTS
    changes = {key: str(value) for key, value in defaults.items()}
    given = {each["name"]: each["value"] for each in asked["configs"]}
    if None in given.values():
        return _altered(asked, ErrorCode.INVALID_REQUEST, "a setting cannot be null")
    return (_alter_group if is_group else _alter)(call, asked, {**changes, **given})


def _default(key: str) -> str | None:
    known = {**_GROUP_DEFAULTS, **_DEFAULTS}
    return str(known[key]) if key in known else None


def _alter_group(call: Call, asked: Message, changes: Mapping[str, str | None]) -> Message:
    """Changes settings of a share group, whether it is there yet or not."""
    name, book = asked["resource_name"], call.store.coordinator.share_settings
    try:
        call.caller.require("admin", name, "alter configs")
        given = {key: value for key, value in changes.items() if value is not None}
        ShareGroupSettings.parse(given)
        if not call.request["validate_only"]:
            book.alter(name, given)
    except LaminaError as error:
        code, said = call.told(error)
        bad = code is ErrorCode.INVALID_REQUEST
        return _altered(asked, ErrorCode.INVALID_CONFIG if bad else code, said)
    return _altered(asked, ErrorCode.NONE, None)


def _alter(call: Call, asked: Message, changes: Mapping[str, str | None]) -> Message:
    name = asked["resource_name"]
    try:
        if asked["resource_type"] != TOPIC:
            raise InvalidRequest("settings of a broker are given when it starts")
        call.caller.require("admin", name, "alter configs")
        now = call.store.describe_topic(name).settings
        wanted = {key: value for key, value in _settable(changes).items() if now.get(key) != value}
        only_check = call.request["validate_only"]
        alter = call.store.topic_changes.check_alteration if only_check else call.store.alter_topic
        if wanted:
            alter(name, wanted)
    except (_BadSetting, InvalidRequest) as error:
        code, said = call.told(error)
        known = isinstance(error, UnknownTopic) or code is not ErrorCode.INVALID_REQUEST
        bad = asked["resource_type"] == TOPIC and not known
        return _altered(asked, ErrorCode.INVALID_CONFIG if bad else code, said)
    except LaminaError as error:
        return _altered(asked, *call.told(error))
    return _altered(asked, ErrorCode.NONE, None)


def _altered(asked: Message, code: ErrorCode, said: str | None) -> Message:
    return {
        "error_code": code,
        "error_message": said,
        "resource_type": asked["resource_type"],
        "resource_name": asked["resource_name"],
    }
