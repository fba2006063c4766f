"""Questions to the demo, and greedy answers of the server."""

import httpx

QUESTIONS = ["Can you explain sugar?", "What is coffee?", "Tell me about rice.", "Explain milk to me."]


def prompt_of(question: str) -> str:
    return f"[INST] {question} [/INST]"


async def complete(client: httpx.AsyncClient, key: str, model: str, prompt: str, max_tokens: int = 40) -> list[int]:
    body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "return_token_ids": True}
    answer = await client.post("/v1/completions", json=body, headers={"authorization": f"Bearer {key}"})
    assert answer.status_code == 200, answer.text
    return list(answer.json()["choices"][0]["token_ids"])
