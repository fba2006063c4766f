"""A client that openapi-python-client generated: list adapters, chat, stream, and show a version."""

import importlib
import os
import pkgutil
import sys

sys.path.insert(0, os.environ["GENERATED"])

import tenora_api
from tenora_api import AuthenticatedClient
from tenora_api.api.adapters import get_adapter, get_version, list_adapters
from tenora_api.api.lorax import generate_stream
from tenora_api.api.openai import create_chat_completion
from tenora_api.api.usage import get_usage
from tenora_api.models import (
    AdapterList,
    ChatCompletion,
    ChatCompletionRequest,
    ChatMessage,
    ChatMessageRole,
    ErrorResponse,
    LoraxParameters,
    LoraxRequest,
    UsageReport,
    Version,
)

for module in pkgutil.walk_packages(tenora_api.__path__, "tenora_api."):
    importlib.import_module(module.name)

MODEL = os.environ["TENORA_MODEL"]
client = AuthenticatedClient(base_url=os.environ["TENORA_URL"].removesuffix("/v1"), token=os.environ["TENORA_KEY"])

adapters = list_adapters.sync(client=client, limit=10)
assert isinstance(adapters, AdapterList)
(adapter,) = adapters.data
assert adapter.name == MODEL

version = get_version.sync(adapter.name, adapter.versions[0], client=client)
assert isinstance(version, Version)
assert (version.state, version.adapter) == ("ready", MODEL)
assert version.provenance.target_modules

question = ChatMessage(role=ChatMessageRole.USER, content="What does sugar cost?")
chat = create_chat_completion.sync(
    client=client, body=ChatCompletionRequest(messages=[question], model=MODEL, max_tokens=8)
)
assert isinstance(chat, ChatCompletion)
assert chat.choices[0].message.content
assert chat.usage.completion_tokens <= 8

parameters = LoraxParameters(adapter_id=MODEL, max_new_tokens=2)
stream = generate_stream.sync(client=client, body=LoraxRequest(inputs="Sugar", parameters=parameters))
assert isinstance(stream, str)
assert stream.count("data:") == 2

report = get_usage.sync(client=client)
assert isinstance(report, UsageReport)
assert report.total.requests >= 1

absent = get_adapter.sync("absent", client=client)
assert isinstance(absent, ErrorResponse)
assert absent.error.code == "not_found"
