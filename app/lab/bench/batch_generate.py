"""``LLM.generate`` of vLLM with a LoRA request for each line: one process, all lines at once.

It runs as a separate process: ``python -m app.lab.bench.batch_generate INPUT OUTPUT ADAPTERS TIMES ARGUMENT...``.
ADAPTERS is a JSON file with the folder of each adapter by name. TIMES is the JSON file for the seconds. The arguments
are those of vLLM's server, of which this takes the engine's.
"""

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from app.lab.bench.servers import Server


def run(source: Path, target: Path, adapters: Mapping[str, str], arguments: Sequence[str]) -> dict[str, float]:
    """Answer all lines, and write the output in OpenAI's form.

    Returns:
        ``start_s``: seconds until the engine was ready. ``seconds``: from the first read of the input to the end of
        the output. ``own_cpu_s`` and ``engine_cpu_s``: CPU time in these seconds.
    """
    from vllm import LLM
    from vllm.engine.arg_utils import EngineArgs
    from vllm.lora.request import LoRARequest
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    began = time.perf_counter()
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    known, _ = parser.parse_known_args(list(arguments))
    llm = LLM.from_engine_args(EngineArgs.from_cli_args(known))
    ready, processes = time.perf_counter(), Server("generate", 0, os.getpid())
    own_s, engine_s = processes.cpu_s(), processes.children_cpu_s()
    records = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()]
    requests = {name: LoRARequest(name, number, path) for number, (name, path) in enumerate(adapters.items(), 1)}
    outputs = llm.generate(
        [_prompt(llm, record["body"]) for record in records],
        [_sampling(record["body"]) for record in records],
        use_tqdm=False,
        lora_request=[requests[record["body"]["model"]] for record in records],
    )
    with target.open("w", encoding="utf-8") as file:
        file.writelines(
            json.dumps(_result(record, output)) + "\n" for record, output in zip(records, outputs, strict=True)
        )
    return {
        "start_s": ready - began,
        "seconds": time.perf_counter() - ready,
        "own_cpu_s": processes.cpu_s() - own_s,
        "engine_cpu_s": processes.children_cpu_s() - engine_s,
    }


def _prompt(llm: Any, body: Mapping[str, Any]) -> Any:
    rendered = llm.get_tokenizer().apply_chat_template(body["messages"], add_generation_prompt=True, return_dict=False)
    return {"prompt_token_ids": rendered}


def _sampling(body: Mapping[str, Any]) -> Any:
    from vllm import SamplingParams

    return SamplingParams(temperature=body["temperature"], max_tokens=body["max_tokens"], ignore_eos=body["ignore_eos"])


def _result(record: Mapping[str, Any], output: Any) -> dict[str, Any]:
    answer = output.outputs[0]
    usage = {"prompt_tokens": len(output.prompt_token_ids), "completion_tokens": len(answer.token_ids)}
    body = {"choices": [{"message": {"content": answer.text}}], "usage": usage}
    return {"custom_id": record["custom_id"], "response": {"status_code": 200, "body": body}, "error": None}


def main() -> None:
    source, target, adapters, times, *arguments = sys.argv[1:]
    folders = json.loads(Path(adapters).read_text(encoding="utf-8"))
    seconds = run(Path(source), Path(target), folders, arguments)
    Path(times).write_text(json.dumps(seconds), encoding="utf-8")


if __name__ == "__main__":
    main()
