"""Chat template processes: output equal to transformers, and resource limits on hostile templates."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from app.domain.errors import Busy
from app.services.prompts.template_worker import LENGTH
from app.services.prompts.templates import TemplateFailed, TemplatePool
from app.settings import LimitSettings

ROOT = Path(__file__).resolve().parents[5]
DEMO = (ROOT / "app/demo/chat_template.jinja").read_text(encoding="utf-8")
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
USER = [{"role": "user", "content": "Was kostet Käse?"}]
TALK = [
    {"role": "system", "content": "Be short."},
    *USER,
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "price", "arguments": {"sku": "Käse"}}}],
    },
    {"role": "tool", "tool_call_id": "1", "content": "<5 & rising>"},
]
TOOL = {"type": "function", "function": {"name": "price", "description": "Its <price> & more", "parameters": {}}}

#: Enough CPU for an honest template on a slow machine, little for a hostile one.
LIMITS = LimitSettings(template_seconds=0.5, template_output_bytes=2**20, template_workers=2)


@pytest.fixture
async def pool():
    pool = TemplatePool(LIMITS)
    yield pool
    await pool.close()


async def render(pool, template, messages=USER, *, tools=None, owner="pricing"):
    return await pool.render(template, messages, tools=tools, variables=TOKENS, owner=owner)


@pytest.mark.parametrize("messages", [USER, TALK])
@pytest.mark.parametrize("tools", [None, [TOOL]])
@pytest.mark.parametrize(
    "template",
    [
        DEMO,
        """{% for m in messages %}
  {% if m['role'] == 'user' %}
{{ m.content }}
  {% endif %}
{% endfor %}
{{ tools|tojson(indent=2) }}""",
        """{%- for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}
{% generation %}{{ m.content|trim }}{% endgeneration %}{% endfor %}
{{ '\\n' }}{{ bos_token }}{{ nothing }}{{ tools }}{{ documents }}
""",
        """{% macro turn(m) %}[{{ m.role }}] {{ m.content }}{% endmacro %}{% set ns = namespace(n=0) %}
{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ turn(m) }}{% endfor %}
{{ ns.n }}{{ add_generation_prompt }}{{ tools is none }}""",
        "{{ strftime_now('%Y') }}{{ messages|map(attribute='role')|join(', ') }}{{ tools is defined }}{{ '<>&' }}",
    ],
)
async def test_the_text_is_that_of_transformers(pool, template, messages, tools):
    (expected,), _ = render_jinja_template(
        [messages], tools=tools, chat_template=template, add_generation_prompt=True, **TOKENS
    )
    assert await render(pool, template, messages, tools=tools) == expected


HOSTILE = [
    ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "time"),
    ("{{ 10 ** 100000000 }}", "time"),
    ("{% set x = 9 ** 8000000 %}{{ x % 7 }}", "time"),
    ("{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}", "failed"),
    ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "failed"),
    ("{{ 'a' * 10 ** 9 }}", "memory"),
    ("{{ 'x'|center(10 ** 9) }}", "memory"),
    ("{{ ('a' * 1000000)|replace('a', 'b' * 1000) }}", "memory"),
    ("{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}", "memory"),
    ("{{ raise_exception('a' * 100000000) }}", "memory"),
    ("{% for i in range(90000) %}{{ 'a' * 1000 }}{% endfor %}", "size"),
    ("{{ range(10 ** 9)|list }}", "failed"),
    ("{% for i in range(10 ** 9) %}{% endfor %}", "failed"),
    ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "failed"),
    ("{{ messages.__class__.__base__ .__subclasses__() }}", "failed"),
    ("{{ cycler.__init__.__globals__.os.environ }}", "failed"),
    ("{{ self.__init__.__globals__ }}", "failed"),
    ("{{ raise_exception.__globals__.os.environ }}", "failed"),
    ("{{ (messages|map('attr', '__class__')|first).__base__ }}", "failed"),
    ("{{ messages.append(1) }}", "failed"),
    ("{% include '/etc/passwd' %}", "failed"),
    ("{% import 'os' as os %}{{ os }}", "failed"),
    ("{% extends '/etc/passwd' %}", "failed"),
    ("{{ '\\ud800' }}", "failed"),
    ("{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "failed"),
    ("{{ " + "-" * 20000 + "1 }}", "failed"),
    ("{% debug %}", "syntax"),
    ("{% for %}", "syntax"),
]


async def test_hostile_templates_end_in_bounded_time_with_a_reason(pool):
    for template, kind in HOSTILE:
        before = time.monotonic()
        with pytest.raises(TemplateFailed) as caught:
            await render(pool, template)
        # On a busy machine a template that exhausts memory may reach the time limit first.
        assert caught.value.kind in ({kind, "time"} if kind == "memory" else {kind}), (template[:80], str(caught.value))
        assert len(caught.value.message) <= 300
        assert "/" not in caught.value.message, caught.value.message
        # The limit counts CPU seconds. Two more seconds of wall time are a margin for a busy machine.
        assert time.monotonic() - before < LIMITS.template_seconds + 2, template[:80]
    assert await render(pool, "{{ messages[0].content }}") == "Was kostet Käse?"


async def test_attributes_of_the_process_read_as_nothing(pool):
    for template in (
        "{{ lipsum.__globals__ }}",
        "{{ ''|attr('__class__') }}",
        "{{ '{0.__class__}'.format(messages) }}",
    ):
        assert await render(pool, template) == ""


async def test_the_memory_bound_holds_and_the_worker_keeps_none_of_it(pool):
    await render(pool, DEMO)
    worker = psutil.Process(pool._idle[0]._process.pid)
    before = worker.memory_info().rss
    with pytest.raises(TemplateFailed, match="memory"):
        await render(pool, "{{ 'a' * 400000000 }}")
    for _ in range(5):
        await render(pool, "{% set x = 'a' * 20000000 %}{{ x|length }}")
    assert worker.memory_info().rss < before + 2**22
    assert not worker.children()


@pytest.mark.parametrize(
    ("template", "line", "message"),
    [
        ("one\ntwo {{ 1 / 0 }}\n", 2, "division by zero"),
        ("\n\n{% if %}", 3, "Expected an expression"),
        ("{% for m in messages %}\n{{ m.content }}", 2, "endfor"),
        ("a\n{{ raise_exception('only one\nturn') }}", 2, "only one\nturn"),
        ("{{ nothing.of }}", 1, "'nothing' is undefined"),
        ("{{ 'a'|no_such_filter }}", 1, "no_such_filter"),
        ("a\n{% macro f(x) %}\n{{ x.y.z }}{% endmacro %}\n{{ f(1) }}", 3, "'int object' has no attribute 'y'"),
    ],
)
async def test_errors_name_the_line(pool, template, line, message):
    with pytest.raises(TemplateFailed, match=f"line {line}: ") as caught:
        await render(pool, template)
    assert caught.value.line == line
    assert message in caught.value.message


async def test_tools_need_a_place(pool):
    with pytest.raises(TemplateFailed) as caught:
        await render(pool, "{{ messages }}", tools=[TOOL])
    assert caught.value.kind == "tools"
    assert "price" in await render(pool, "{{ tools }}", tools=[TOOL])


async def test_a_slow_tenant_waits_for_itself(pool):
    """With two workers, a dozen endless renderings of one tenant occupy one worker. Other tenants use the other one."""
    await asyncio.gather(render(pool, DEMO, owner="a"), render(pool, DEMO, owner="b"))
    slow = [asyncio.create_task(render(pool, HOSTILE[0][0], owner="slow")) for _ in range(12)]
    await asyncio.sleep(0)
    for _ in range(3):
        await render(pool, DEMO, owner="quick")
    assert sum(task.done() for task in slow) < 6
    for task in slow:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)


async def test_many_at_once_each_get_their_own_text(pool):
    async def one(number):
        text = f"{number}: " + "x" * number
        return await render(
            pool, "{{ messages[0].content }}", [{"role": "user", "content": text}], owner=f"{number % 5}"
        )

    answers = await asyncio.gather(*(one(number) for number in range(60)))
    assert answers == [f"{number}: " + "x" * number for number in range(60)]
    assert len(pool._idle) <= LIMITS.template_workers
    assert pool._owners._semaphores == {}


async def test_a_caller_that_goes_away_leaves_the_worker_in_order(pool):
    await render(pool, DEMO)
    pids = [worker._process.pid for worker in pool._idle]
    for _ in range(5):
        task = asyncio.create_task(render(pool, "{{ 'secret' }}"))
        await asyncio.sleep(0.002)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await render(pool, "{{ messages[0].content }}") == "Was kostet Käse?"
    assert [worker._process.pid for worker in pool._idle] == pids


async def test_a_worker_that_dies_is_replaced(pool):
    await render(pool, DEMO)
    os.kill(pool._idle[0]._process.pid, signal.SIGKILL)
    with pytest.raises(Busy):
        await render(pool, DEMO)
    assert "Was kostet" in await render(pool, DEMO)


async def test_nothing_is_left_running():
    others = workers()  # workers of servers from other tests
    pool = TemplatePool(LimitSettings(template_seconds=60))
    busy = asyncio.create_task(render(pool, HOSTILE[0][0]))
    while len(working := [worker for worker in workers() if worker not in others]) < 2:  # a worker and its child
        await asyncio.sleep(0.01)
    await pool.close()
    with pytest.raises(asyncio.CancelledError):
        await busy
    _, alive = psutil.wait_procs(working, timeout=10)
    assert alive == []


def workers():
    children = psutil.Process().children(recursive=True)
    return [child for child in children if "app.services.prompts.template_worker" in child.cmdline()]


# Simulated escape from Jinja's sandbox: a template that can evaluate any Python.
ESCAPED = """
import sys
from app.services.prompts import template_worker as worker
made = worker.environment
def environment():
    jinja = made()
    jinja.globals["python"] = eval
    jinja.is_safe_callable = lambda it: True
    return jinja
worker.environment = environment
worker.serve(sys.stdin.buffer, sys.stdout.buffer, worker.Limits(5, 20, 2**28, 2**20))
"""


def test_a_template_outside_the_sandbox_can_read_nothing():
    code = {
        "open('/etc/passwd')": "it needs a file",
        "open('/tmp/tenora-escape', 'w')": "it needs a file",
        "__import__('os').listdir('/')": "it needs a file",
        "__import__('socket').socket()": "it needs a file",
        "[fd for fd in range(64) if __import__('os').path.exists(f'/proc/self/fd/{fd}') and fd < 3]": "[]",
        "set(__import__('os').environ) - {'PYTHONPATH', 'LC_CTYPE'}": "set()",
        "__import__('os').read(0, 1)": "it needs a file",
    }
    requests = b""
    for expression in code:
        template = "{{ python(messages[0].content) }}"
        messages = [{"role": "user", "content": expression}]
        body = json.dumps({"template": template, "messages": messages, "tools": None, "variables": {}}).encode()
        requests += LENGTH.pack(len(body)) + body
    done = subprocess.run(
        [sys.executable, "-B", "-s", "-c", ESCAPED],
        input=requests,
        capture_output=True,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        check=True,
        timeout=60,
    )
    replies, output = [], done.stdout
    while output:
        (length,) = LENGTH.unpack(output[:4])
        replies.append(json.loads(output[4 : 4 + length]))
        output = output[4 + length :]
    for (expression, expected), reply in zip(code.items(), replies, strict=True):
        found = reply.get("text", reply.get("message"))
        assert found.startswith(expected), (expression, reply)
